package certs

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"path"
	"strconv"
	"sync"
	"time"

	"github.com/caddyserver/certmagic"
	"github.com/mholt/acmez/v3"
	"github.com/mholt/acmez/v3/acme"
)

const (
	// maxAnswerBytes bounds an answer of the CA's.
	maxAnswerBytes = 1 << 20
	requestTimeout = 30 * time.Second
	pollTimeout    = 2 * time.Minute
	attemptTimeout = 5 * time.Minute
)

// authority is the CA as one policy has it reached, and the account there. It
// does not change.
type authority struct {
	*manager
	email     string
	eab       *acme.EAB
	order     []string // the challenges, in the order in which they are tried
	transport http.RoundTripper
}

// issuer is the certmagic.Issuer: the authority in force.
type issuer struct{ *manager }

var _ certmagic.Issuer = issuer{}

// IssuerKey is as certmagic makes it, so that its storage has its usual form.
func (i issuer) IssuerKey() string { return i.key }

// Issue implements certmagic.Issuer.
func (i issuer) Issue(ctx context.Context, csr *x509.CertificateRequest) (*certmagic.IssuedCertificate, error) {
	return i.authority.Load().issue(ctx, csr)
}

func issuerKey(directory string) string {
	return (&certmagic.ACMEIssuer{CA: directory}).IssuerKey()
}

// unreached is an attempt that came to no order: the CA is down, refuses the
// account, or may not be asked.
type unreached struct{ cause error }

func (e *unreached) Error() string { return e.cause.Error() }
func (e *unreached) Unwrap() error { return e.cause }

// attempt is what issue is told by its caller, and tells it, about one attempt.
type attempt struct {
	replaces *x509.Certificate // the certificate that is renewed

	retryAfter time.Duration // as the CA asked for
	info       *acme.RenewalInfo
}

type attemptKey struct{}

// issue obtains a certificate. Its error is an *unreached if nothing was ordered.
func (a *authority) issue(ctx context.Context, csr *x509.CertificateRequest) (issued *certmagic.IssuedCertificate, err error) {
	at, _ := ctx.Value(attemptKey{}).(*attempt)
	if at == nil {
		return nil, errors.New("certificates are ordered by their manager alone")
	}
	line := &line{under: a.transport}
	defer func() { at.retryAfter = line.retryAfter(err) }()
	client := a.client(line)
	if err := line.enter(ctx, client); err != nil {
		return nil, &unreached{err}
	}
	account, err := a.account(ctx, client)
	if err != nil {
		return nil, &unreached{fmt.Errorf("account: %w", err)}
	}
	certificate, err := a.obtain(ctx, line, client, account, csr, at)
	if problem, ok := errors.AsType[acme.Problem](err); ok && problem.Type == acme.ProblemTypeAccountDoesNotExist {
		// The CA has lost it, as private ones do when they are set up anew.
		if err := a.storage.Delete(ctx, a.accountKey("")); err != nil {
			return nil, &unreached{err}
		}
		if account, err = a.account(ctx, client); err != nil {
			return nil, &unreached{fmt.Errorf("account: %w", err)}
		}
		certificate, err = a.obtain(ctx, line, client, account, csr, at)
	}
	if err != nil {
		return nil, err
	}
	at.info = certificate.RenewalInfo
	return &certmagic.IssuedCertificate{Certificate: certificate.ChainPEM, Metadata: *certificate}, nil
}

// obtain places an order for each challenge until one succeeds. A refusal to
// take the order is not asked for twice.
func (a *authority) obtain(ctx context.Context, line *line, client *acme.Client, account acme.Account, csr *x509.CertificateRequest, at *attempt) (*acme.Certificate, error) {
	params, err := acmez.OrderParametersFromCSR(account, csr)
	if err != nil {
		return nil, err
	}
	params.Replaces = at.replaces
	others, _ := a.storage.(*sharedStorage)
	solvers := map[string]acmez.Solver{challengeALPN: solver(alpnSolver{a.challenges}, others), challengeHTTP: solver(httpSolver{a.challenges}, others)}
	var faults []error
	for _, challenge := range a.answerable() {
		before := line.orders()
		// One solver at a time keeps the order of the policy; acmez would take its own.
		one := &acmez.Client{Client: client, ChallengeSolvers: map[string]acmez.Solver{challenge: solvers[challenge]}}
		chains, err := one.ObtainCertificate(ctx, params)
		if err == nil && len(chains) == 0 {
			err = errors.New("the CA sent no certificate")
		}
		if err == nil {
			return &chains[0], nil
		}
		if line.orders() == before { // it was not taken
			if problem, ok := errors.AsType[acme.Problem](err); len(faults) == 0 && (!ok || problem.Status >= 500) {
				err = &unreached{err}
			}
			return nil, errors.Join(append(faults, err)...)
		}
		if ctx.Err() != nil {
			return nil, errors.Join(append(faults, err)...)
		}
		faults = append(faults, fmt.Errorf("%s: %w", challenge, err))
		params.Replaces = nil // a CA may take one replacement alone
	}
	if len(faults) == 0 {
		return nil, &unreached{errors.New("no challenge can be answered: http_bind could not be bound, and no other challenge is configured")}
	}
	return nil, errors.Join(faults...)
}

// answerable are the challenges that can be answered, in their order.
func (a *authority) answerable() []string {
	var can []string
	for _, challenge := range a.order {
		if challenge != challengeHTTP || !a.challenges.noHTTP.Load() {
			can = append(can, challenge)
		}
	}
	return can
}

// client speaks to the CA over line. It is made anew for each attempt, so that
// the directory, and with it the CA's clock, is looked at each time.
func (a *authority) client(line *line) *acme.Client {
	return &acme.Client{
		Directory:   a.directory,
		HTTPClient:  &http.Client{Transport: line, Timeout: requestTimeout},
		UserAgent:   "relayedge",
		PollTimeout: pollTimeout,
	}
}

func (a *authority) accountKey(file string) string {
	return path.Join(accountFolder(a.key), file)
}

func accountFolder(key string) string {
	return path.Join("acme", certmagic.StorageKeys.Safe(key), "account")
}

// account loads the account, or registers one. The key is stored before it is
// told to the CA: whoever registers with it again is given the same account.
func (a *authority) account(ctx context.Context, client *acme.Client) (acme.Account, error) {
	a.registering.Lock()
	defer a.registering.Unlock()
	var account acme.Account
	// Two processes that register at once would end with the key of one and the
	// account of the other.
	lock := "account_" + certmagic.StorageKeys.Safe(a.key)
	if err := a.storage.Lock(ctx, lock); err != nil {
		return account, err
	}
	defer a.storage.Unlock(context.WithoutCancel(ctx), lock)
	key, made, err := a.accountSecret(ctx)
	if err != nil {
		return account, err
	}
	var contact []string
	if a.email != "" {
		contact = []string{"mailto:" + a.email}
	}
	data, err := a.storage.Load(ctx, a.accountKey("account.json"))
	if !made && err == nil && json.Unmarshal(data, &account) == nil && account.Status == acme.StatusValid && account.Location != "" {
		account.PrivateKey = key
		if (len(contact) == 0) == (len(account.Contact) == 0) && (len(contact) == 0 || contact[0] == account.Contact[0]) {
			return account, nil
		}
		account.Contact = contact
		location := account.Location // the answer to an update need not say it
		if account, err = client.UpdateAccount(ctx, account); err != nil {
			return account, err
		}
		account.Location = location
	} else {
		account = acme.Account{Contact: contact, TermsOfServiceAgreed: true, PrivateKey: key}
		if a.eab != nil {
			if err := account.SetExternalAccountBinding(ctx, client, *a.eab); err != nil {
				return account, fmt.Errorf("external account binding: %w", err)
			}
		}
		if account, err = client.NewAccount(ctx, account); err != nil {
			return account, err
		}
	}
	account.PrivateKey, account.Contact, account.ExternalAccountBinding = key, contact, nil
	if data, err = json.Marshal(account); err != nil {
		return account, err
	}
	return account, a.storage.Store(ctx, a.accountKey("account.json"), data)
}

// accountSecret loads the account's private key, or makes one.
func (a *authority) accountSecret(ctx context.Context) (key *ecdsa.PrivateKey, made bool, err error) {
	data, err := a.storage.Load(ctx, a.accountKey("account.key"))
	switch {
	case err == nil:
		secret, err := certmagic.PEMDecodePrivateKey(data)
		if key, ok := secret.(*ecdsa.PrivateKey); ok && err == nil {
			return key, false, nil
		}
		return nil, false, fmt.Errorf("the account's key in %s cannot be read; put it back, or remove the folder %s for a new account", a.storage.name(), a.accountKey(""))
	case !errors.Is(err, fs.ErrNotExist):
		return nil, false, err
	}
	if key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		return nil, false, err
	}
	if data, err = certmagic.PEMEncodePrivateKey(key); err != nil {
		return nil, false, err
	}
	return key, true, a.storage.Store(ctx, a.accountKey("account.key"), data)
}

// renewalInfo asks when the CA wants a certificate renewed.
func (a *authority) renewalInfo(ctx context.Context, leaf *x509.Certificate) (acme.RenewalInfo, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	return a.client(&line{under: a.transport}).GetRenewalInfo(ctx, leaf)
}

// newTransport is how the CA is reached, which has roots of its own if any are given.
func newTransport(roots *x509.CertPool) *http.Transport {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.TLSClientConfig = &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
	t.ResponseHeaderTimeout = requestTimeout
	t.MaxIdleConnsPerHost = 1
	t.IdleConnTimeout = 10 * time.Second
	return t
}

// line is the way to the CA for one attempt. It bounds what the CA answers and
// notes what acmez does not tell: the retry time of a refusal, whether an order
// was taken, and the CA's clock.
type line struct {
	under http.RoundTripper

	mu       sync.Mutex
	newOrder string
	taken    int
	retry    time.Duration
	clock    time.Duration // the CA's time less ours
}

// enter fetches the directory, and refuses to go on by a clock that is wrong.
func (l *line) enter(ctx context.Context, client *acme.Client) error {
	directory, err := client.GetDirectory(ctx)
	if err != nil {
		if invalid, ok := errors.AsType[x509.CertificateInvalidError](err); ok && invalid.Reason == x509.Expired {
			return fmt.Errorf("the certificate of the CA's own server is not valid by the clock of this machine (%s); is the clock right?", stamp(time.Now()))
		}
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if off := l.clock; off.Abs() > clockTolerance {
		side := "behind"
		if off < 0 {
			side = "ahead of"
		}
		return fmt.Errorf("the clock of this machine (%s) is %s %s the CA's; nothing is ordered until it is right", stamp(time.Now()), off.Abs().Round(time.Hour), side)
	}
	l.newOrder = directory.NewOrder
	return nil
}

func (l *line) orders() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.taken
}

// retryAfter is what the CA asked for by a header, or else in the words of err.
func (l *line) retryAfter(err error) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if problem, ok := errors.AsType[acme.Problem](err); ok && l.retry == 0 {
		if at, ok := retryTime(problem.Detail); ok {
			return max(time.Until(at), 0)
		}
	}
	return l.retry
}

// RoundTrip implements http.RoundTripper.
func (l *line) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := l.under.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	if date, err := http.ParseTime(resp.Header.Get("Date")); err == nil {
		l.clock = date.Sub(now)
	}
	switch {
	case resp.StatusCode >= 400:
		l.retry = max(l.retry, parseRetryAfter(resp.Header.Get("Retry-After"), now.Add(l.clock)))
	case resp.StatusCode == http.StatusCreated && l.newOrder != "" && req.URL.String() == l.newOrder:
		l.taken++
	}
	resp.Body = http.MaxBytesReader(nil, resp.Body, maxAnswerBytes)
	return resp, nil
}

// parseRetryAfter reads the header, in seconds or as a date; nothing is zero.
func parseRetryAfter(value string, now time.Time) time.Duration {
	if seconds, err := strconv.ParseUint(value, 10, 31); err == nil {
		return time.Duration(seconds) * time.Second
	}
	if at, err := http.ParseTime(value); err == nil {
		return max(at.Sub(now), 0)
	}
	return 0
}

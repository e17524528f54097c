package certs

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"math/rand/v2"
	"regexp"
	"strings"
	"time"
	"unicode"

	"github.com/mholt/acmez/v3/acme"
)

// record is what is remembered across restarts of the orders for one name, and
// of what the CA as a whole refuses. It is in the storage before an order is
// placed: as a failed attempt, which success takes back. So a process that is
// killed while it orders has failed too, and a restart waits its turn.
type record struct {
	Failures int       `json:"failures,omitempty"` // in a row
	At       time.Time `json:"at,omitzero"`        // when the last of them began
	Next     time.Time `json:"next,omitzero"`      // nothing is ordered before
	Fault    string    `json:"fault,omitempty"`

	Serial  string    `json:"serial,omitempty"` // the certificate that the rest is about
	Renew   time.Time `json:"renew,omitzero"`   // when the CA wants it renewed (RFC 9773)
	AskNext time.Time `json:"ask_next,omitzero"`
}

const (
	// maxHold bounds a retry time of the CA's, which is in force across restarts.
	maxHold = 30 * 24 * time.Hour
	// maxFaultBytes bounds the CA's words in the log and the storage.
	maxFaultBytes = 500
	// clockTolerance is how far this machine's clock may be from the CA's.
	clockTolerance = 24 * time.Hour
	// firstOrderDelay keeps a process that starts with an empty storage each time,
	// and ends soon, from ordering at all; longer where the storage is of a kind
	// that is commonly gone after a restart.
	firstOrderDelay         = 10 * time.Second
	firstOrderDelayVolatile = time.Minute
	// askInterval is when to ask for renewal information again where the CA does
	// not say; its word counts between the other two.
	askInterval, minAskInterval, maxAskInterval = 6 * time.Hour, 10 * time.Minute, 24 * time.Hour
)

var (
	// orderPauses follow failed orders. Let's Encrypt takes five failed
	// validations an hour for a name, and an order may fail one for each challenge.
	orderPauses = []time.Duration{
		time.Minute, 20 * time.Minute, time.Hour, 3 * time.Hour, 6 * time.Hour, 12 * time.Hour, 24 * time.Hour,
	}
	// reachPauses follow attempts that came to no order: they cost the CA little.
	reachPauses = []time.Duration{
		15 * time.Second, time.Minute, 2 * time.Minute, 5 * time.Minute, 15 * time.Minute, 30 * time.Minute, time.Hour,
	}
)

// failed notes one more failure at now; retryAfter is what the CA asked for, or
// zero.
func (r *record) failed(now time.Time, pauses []time.Duration, retryAfter time.Duration, fault string) {
	pause := pauses[min(r.Failures, len(pauses)-1)]
	pause += time.Duration((rand.Float64() - 0.5) * 0.2 * float64(pause)) // not all names at once
	pause = max(pause, min(retryAfter, maxHold))
	r.Failures++
	r.At, r.Next, r.Fault = now, now.Add(pause), fault
}

// settle brings the record into step with a clock that was set back since it was
// written: the pause stays as long as it was.
func (r *record) settle(now time.Time) {
	if r.Next.IsZero() || !now.Before(r.At.Add(-clockTolerance)) {
		return
	}
	r.At, r.Next = now, now.Add(min(max(r.Next.Sub(r.At), 0), maxHold))
}

// renewAt is when a certificate is to be renewed: when the CA said, or when a
// third of its life is left (half, of a short one); in any case before the last
// twentieth (fifth).
func (r *record) renewAt(leaf *x509.Certificate) time.Time {
	life := leaf.NotAfter.Sub(leaf.NotBefore)
	at, last := leaf.NotAfter.Add(-life/3), leaf.NotAfter.Add(-life/20)
	if life < 10*24*time.Hour {
		at, last = leaf.NotAfter.Add(-life/2), leaf.NotAfter.Add(-life/5)
	}
	if r.Serial == serialOf(leaf) && !r.Renew.IsZero() {
		at = r.Renew
	}
	if at.After(last) {
		at = last
	}
	// A CA that wants every certificate renewed at once gets no storm of orders.
	if first := leaf.NotBefore.Add(min(6*time.Hour, life/10)); at.Before(first) {
		at = first
	}
	return at
}

// noted takes the CA's word on the renewal of a certificate. A time that was
// chosen before stays while the CA's window holds it.
func (r *record) noted(leaf *x509.Certificate, info *acme.RenewalInfo, now time.Time) {
	chosen := r.Renew
	if r.Serial != serialOf(leaf) {
		chosen = time.Time{}
	}
	r.Serial, r.Renew, r.AskNext = serialOf(leaf), time.Time{}, now.Add(askInterval)
	if info == nil || !info.HasWindow() {
		return
	}
	if chosen.IsZero() || chosen.Before(info.SuggestedWindow.Start) || chosen.After(info.SuggestedWindow.End) {
		chosen = info.SelectedTime
	}
	r.Renew = chosen
	if info.RetryAfter != nil {
		r.AskNext = now.Add(min(max(info.RetryAfter.Sub(now), minAskInterval), maxAskInterval))
	}
}

func serialOf(leaf *x509.Certificate) string { return leaf.SerialNumber.Text(16) }

// loadRecord returns the record at key; one that is not there, or not to be
// read, is empty.
func loadRecord(ctx context.Context, kept storage, key string, now time.Time) record {
	r, _ := readRecord(ctx, kept, key, now)
	return r
}

func readRecord(ctx context.Context, kept storage, key string, now time.Time) (r record, err error) {
	data, err := kept.Load(ctx, key)
	if err == nil {
		err = json.Unmarshal(data, &r)
	}
	if err != nil {
		return record{}, err
	}
	r.Failures = max(r.Failures, 0)
	r.settle(now)
	return r, nil
}

func (r record) store(ctx context.Context, kept storage, key string) error {
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return kept.Store(ctx, key, data)
}

// saidRetry finds the time in the words of a CA that refuses for a while.
var saidRetry = regexp.MustCompile(`retry after (\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)`)

// retryTime reads a retry time out of a CA's words.
func retryTime(words string) (time.Time, bool) {
	m := saidRetry.FindStringSubmatch(words)
	if m == nil {
		return time.Time{}, false
	}
	at, err := time.Parse("2006-01-02 15:04:05", m[1]+" "+m[2])
	return at, err == nil
}

// quoted makes a CA's words fit for a line of a log and for the storage.
func quoted(words string) string {
	words = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, strings.Join(strings.Fields(words), " "))
	if len(words) > maxFaultBytes {
		words = strings.ToValidUTF8(words[:maxFaultBytes], "") + "…"
	}
	return words
}

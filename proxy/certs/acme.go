package certs

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"path"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddyserver/certmagic"
	"github.com/mholt/acmez/v3/acme"
	"go.uber.org/zap"
)

const (
	// checkInterval is how often the storage is looked at for what another process
	// has put there.
	checkInterval = time.Minute
	// stapleInterval is how often a staple is looked at; it is fetched anew when
	// half of its time is over.
	stapleInterval = time.Hour
	// storagePause follows a storage that could not be written.
	storagePause = time.Minute
	// lookInterval is checkInterval for a name that has no certificate, and the
	// pause after the sight of another process that orders it.
	lookInterval = 5 * time.Second
	// atOnce is how many names are looked after at the same time.
	atOnce = 4
	// never is beyond the life of any process.
	never = 200 * 365 * 24 * time.Hour
)

// manager orders and renews the certificates of the acme section. What it has is
// in memory, from where it is served; only run speaks with the CA.
type manager struct {
	log        *slog.Logger
	storage    storage
	directory  string
	key        string // the CA's part of the storage's keys
	challenges *challenges
	orders     *orderCounts
	firstAt    time.Time     // nothing is ordered before
	changed    chan struct{} // a certificate is another one
	again      chan struct{} // the domains are others

	config *certmagic.Config // while run runs
	cache  *certmagic.Cache

	authority   atomic.Pointer[authority] // as the policy has it: an attempt goes on with the one it began with
	registering sync.Mutex                // held over a registration: there is one at a time

	mu           sync.Mutex
	domains      []*domain // replaced as a whole
	hold         record    // what the CA as a whole refuses
	storageFault string    // as it was told last
	unread       bool      // the storage could not be read when it was last
}

// orderCounts count how orders ended.
type orderCounts struct{ obtained, renewed, failed atomic.Uint64 }

// openACME reads what is stored. It fails on files of the policy that cannot be
// used; a storage that cannot be written is told and holds the orders back.
func openACME(cfg ACME, shared Shared, challenges *challenges, orders *orderCounts, now time.Time, log *slog.Logger) (*manager, error) {
	kept, err := openStorage(cfg, shared)
	if err != nil {
		return nil, err
	}
	m := &manager{
		log: log.With("part", "acme"), storage: kept,
		directory: cfg.directory(), key: issuerKey(cfg.directory()),
		challenges: challenges, orders: orders,
		changed: make(chan struct{}, 1), again: make(chan struct{}, 1),
	}
	a, err := m.newAuthority(cfg)
	if err != nil {
		return nil, err
	}
	m.authority.Store(a)
	m.begin(context.Background(), now)
	m.domains, err = m.openDomains(cfg.Domains, nil, now)
	return m, err
}

// fits reports whether the manager can go on with another section.
func (m *manager) fits(cfg ACME) bool {
	return m.directory == cfg.directory() && m.storage.name() == cfg.Storage
}

// newAuthority reads the files of the section.
func (m *manager) newAuthority(cfg ACME) (*authority, error) {
	a := &authority{manager: m, email: cfg.Email, order: slices.Clone(cfg.Challenges)}
	var faults []error
	var roots *x509.CertPool
	if cfg.CARootFile != "" {
		pem, err := readFile(cfg.CARootFile)
		if roots = x509.NewCertPool(); err == nil && !roots.AppendCertsFromPEM(pem) {
			err = fmt.Errorf("%s: holds no PEM certificate", cfg.CARootFile)
		}
		if err != nil {
			faults = append(faults, fmt.Errorf("certificates.acme.ca_root_file: %w", err))
		}
	}
	if cfg.EABKeyFile != "" {
		secret, err := readFile(cfg.EABKeyFile)
		// The base64url alphabet without padding is what acmez takes.
		text := strings.TrimRight(strings.TrimSpace(string(secret)), "=")
		if err == nil && (text == "" || len(text) > maxSecretFile || strings.ContainsFunc(text, notBase64URL)) {
			err = fmt.Errorf("%s: holds no key in base64url", cfg.EABKeyFile)
		}
		if err != nil {
			faults = append(faults, fmt.Errorf("certificates.acme.eab_key_file: %w", err))
		}
		a.eab = &acme.EAB{KeyID: cfg.EABKeyID, MACKey: text}
	}
	a.transport = newTransport(roots)
	return a, errors.Join(faults...)
}

// openDomains has one domain for each name: the one that is held, or else what
// is stored of the name.
func (m *manager) openDomains(names []string, held []*domain, now time.Time) ([]*domain, error) {
	ctx := context.Background() // a storage answers within seconds, or says so
	var domains []*domain
	for _, written := range names {
		name, err := orderableName(written)
		if err != nil {
			return nil, fmt.Errorf("certificates.acme.domains: %w", err)
		}
		if i := slices.IndexFunc(held, func(d *domain) bool { return d.name == name }); i >= 0 {
			domains = append(domains, held[i])
			continue
		}
		d := &domain{manager: m, name: name}
		d.record = loadRecord(ctx, m.storage, m.recordKey(path.Join("names", name)), now)
		d.load(ctx, now)
		d.refresh(now)
		domains = append(domains, d)
	}
	return domains, nil
}

// take puts another section in force. Whatever is under way goes on, but for
// names that are gone.
func (m *manager) take(a *authority, domains []*domain) {
	m.authority.Store(a)
	m.mu.Lock()
	m.domains = domains
	m.mu.Unlock()
	select {
	case m.again <- struct{}{}:
	default: // run will look anyway
	}
}

func (m *manager) current() []*domain {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.domains
}

func notBase64URL(r rune) bool {
	return !('A' <= r && r <= 'Z' || 'a' <= r && r <= 'z' || '0' <= r && r <= '9' || r == '-' || r == '_')
}

// begin probes the storage and decides when the first order may be placed: a
// storage that remembers nothing cannot bound the orders of a process that is
// started again and again.
func (m *manager) begin(ctx context.Context, now time.Time) {
	fresh := !m.storage.Exists(ctx, "orders")
	err := m.storage.probe(ctx)
	kind := m.storage.volatile()
	if kind != "" {
		m.log.Warn("the storage is on a file system that is commonly gone after a restart: its certificates are ordered anew then, until the CA refuses; put it on a disk or a volume", "storage", m.storage.name(), "kind", kind)
	}
	if fresh {
		delay := firstOrderDelay
		if kind != "" {
			delay = firstOrderDelayVolatile
		}
		m.firstAt = now.Add(delay)
		m.log.Info("the storage is new: the first order waits", "storage", m.storage.name(), "for", delay)
	}
	m.hold = loadRecord(ctx, m.storage, m.recordKey("ca"), now)
	if err == nil {
		err = m.hold.store(ctx, m.storage, m.recordKey("ca")) // from here it is not new
	}
	m.tellStorage(err)
}

func (m *manager) recordKey(of string) string {
	return path.Join("orders", certmagic.StorageKeys.Safe(m.key), of+".json")
}

// tellStorage logs once when the storage cannot be written, and when it can again.
func (m *manager) tellStorage(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	text := ""
	if err != nil {
		text = err.Error()
	}
	switch {
	case text == m.storageFault:
	case text == "":
		m.log.Info("the storage can be written again", "storage", m.storage.name())
	default:
		m.log.Error("nothing is ordered, since it could not be kept: "+text, "storage", m.storage.name())
	}
	m.storageFault = text
}

// reads takes how a read of the storage went, and reports whether it says what is
// stored. It logs once when it does not, and when it does again.
func (m *manager) reads(err error) bool {
	away, unread := errors.AsType[*storageAway](err)
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case unread == m.unread:
	case unread:
		m.log.Error("the storage cannot be read; what is loaded is served on, and nothing else until it can", "storage", m.storage.name(), "error", away)
	default:
		m.log.Info("the storage can be read again", "storage", m.storage.name())
	}
	m.unread = unread
	return !unread
}

// start has run looked after by tasks. No manager does nothing.
func (m *manager) start(ctx context.Context, tasks *sync.WaitGroup) (stop func()) {
	if m == nil {
		return func() {}
	}
	its, stop := context.WithCancel(ctx)
	tasks.Go(func() { m.run(its) })
	return stop
}

// fault is why the storage cannot be written, or nothing.
func (m *manager) fault() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.storageFault
}

// run looks after the certificates until ctx ends.
func (m *manager) run(ctx context.Context) {
	// certmagic's own maintenance rests: it knows neither the pauses that are kept
	// nor those that the CA asks for.
	m.cache = certmagic.NewCache(certmagic.CacheOptions{
		GetConfigForCert:   func(certmagic.Certificate) (*certmagic.Config, error) { return m.config, nil },
		OCSPCheckInterval:  never,
		RenewCheckInterval: never,
		Logger:             zap.NewNop(), // what it would say, with less care for what it says, is said here
	})
	defer m.cache.Stop()
	m.config = certmagic.New(m.cache, certmagic.Config{
		Issuers:             []certmagic.Issuer{issuer{m}},
		Storage:             m.storage,
		KeySource:           certmagic.DefaultKeyGenerator,
		OCSP:                certmagic.OCSPConfig{HTTPProxy: http.ProxyFromEnvironment}, // with it there is a timeout
		DisableARI:          true,                                                       // the record has it
		DisableStorageCheck: true,                                                       // probe does it
		Logger:              zap.NewNop(),
	})
	var tasks sync.WaitGroup
	defer tasks.Wait()
	if kept, ok := m.storage.(*sharedStorage); ok {
		tasks.Go(func() { kept.watchChallenges(ctx, m.challenges) })
	}
	slots := make(chan struct{}, atOnce)
	tended := make(map[*domain]context.CancelFunc)
	for {
		domains := m.current()
		for d, stop := range tended {
			if !slices.Contains(domains, d) {
				stop()
				delete(tended, d)
			}
		}
		for _, d := range domains {
			if tended[d] == nil {
				its, stop := context.WithCancel(ctx)
				tended[d] = stop
				tasks.Go(func() { d.watch(its, slots) })
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-m.again:
		}
	}
}

// heldUntil is until when the CA as a whole is left alone.
func (m *manager) heldUntil() time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.hold.Next
}

// refused notes that the CA as a whole could not be used, once for all the names
// that find out at the same time.
func (m *manager) refused(ctx context.Context, now time.Time, err error, retryAfter time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if now.Before(m.hold.Next) {
		return
	}
	m.hold.failed(now, reachPauses, retryAfter, quoted(err.Error()))
	m.log.Error("the CA cannot be used at the moment; certificates in force are served on", "directory", m.directory, "error", m.hold.Fault, "next_attempt", m.hold.Next)
	// Where it cannot be kept, a restart asks the CA once more.
	m.hold.store(ctx, m.storage, m.recordKey("ca"))
}

// lookAtHold takes over what other processes of the storage have noted of the CA.
func (m *manager) lookAtHold(ctx context.Context, now time.Time) {
	m.mu.Lock()
	before := m.hold
	m.mu.Unlock()
	noted, err := readRecord(ctx, m.storage, m.recordKey("ca"), now)
	if err != nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.hold == before { // what another name has noted meanwhile is newer
		m.hold = noted
	}
}

// reached notes that the CA took an order.
func (m *manager) reached(ctx context.Context) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.hold.Failures == 0 {
		return
	}
	m.hold = record{}
	m.log.Info("the CA can be used again", "directory", m.directory)
	m.hold.store(ctx, m.storage, m.recordKey("ca"))
}

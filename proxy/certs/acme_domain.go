package certs

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddyserver/certmagic"
	"github.com/mholt/acmez/v3/acme"
)

// domain is one name with its certificate: a source of the store.
type domain struct {
	*manager
	name   string
	served atomic.Pointer[tls.Certificate]
	taken  *tls.Certificate // what the store has; guarded by its lock

	// Of the one goroutine that looks after the name:
	chain   []byte    // the certificate in force, as it is stored
	broken  string    // why what is stored cannot be used
	wait    time.Time // nothing is ordered before; not kept
	stapled time.Time
	kept    time.Time // when the storage was told to keep what is the name's

	mu     sync.Mutex // guards record for those who read it meanwhile
	record record
}

func (d *domain) names() []string               { return []string{d.name} }
func (d *domain) certificate() *tls.Certificate { return d.taken }

// refresh takes what the manager has: the manager does the work.
func (d *domain) refresh(time.Time) bool {
	served := d.served.Load()
	changed := served != d.taken
	d.taken = served
	return changed
}

// watch looks after the name until ctx ends, whenever there is a slot for it.
func (d *domain) watch(ctx context.Context, slots chan struct{}) {
	for {
		select {
		case <-ctx.Done():
			return
		case slots <- struct{}{}:
		}
		if ctx.Err() == nil {
			d.tend(ctx)
		}
		<-slots
		now := time.Now()
		wait := min(d.next(now).Sub(now), checkInterval)
		select {
		case <-ctx.Done():
			return
		case <-time.After(max(wait, 10*time.Millisecond)):
		}
	}
}

// tend does for a name what its time has come for.
func (d *domain) tend(ctx context.Context) {
	now := time.Now()
	d.load(ctx, now)
	if now.Sub(d.kept) >= keepInterval && d.storage.keep(ctx, certmagic.StorageKeys.CertsSitePrefix(d.key, d.name), d.recordKey(path.Join("names", d.name)), d.recordKey("ca"), accountFolder(d.key)) == nil {
		d.kept = now
	}
	if d.served.Load() != nil && !now.Before(d.asks()) {
		d.ask(ctx)
	}
	if !time.Now().Before(d.due()) {
		d.order(ctx)
	}
	if leaf := d.served.Load(); leaf != nil && len(leaf.Leaf.OCSPServer) > 0 && now.Sub(d.stapled) >= stapleInterval {
		d.staple(ctx, now)
	}
}

// order has the certificate ordered or renewed. Whoever may order the name holds
// its lock in the storage.
func (d *domain) order(ctx context.Context) {
	under, release, err := d.storage.hold(ctx, "order_"+d.name)
	switch {
	case err != nil:
		if ctx.Err() == nil {
			d.tellStorage(d.storage.unusable(err))
		}
		d.wait = time.Now().Add(storagePause)
		return
	case under == nil:
		d.wait = time.Now().Add(lookInterval)
		return
	}
	defer release()
	d.orderUnder(under)
	if under.Err() != nil && ctx.Err() == nil {
		d.log.Warn("the lock of an order was lost while it was under way: this process was frozen, or cut off from the storage; whoever has the lock goes on", "domain", d.name)
		d.wait = time.Now().Add(lookInterval)
	}
}

// orderUnder is order under the name's lock, which ctx ends with.
func (d *domain) orderUnder(ctx context.Context) {
	// Another process may have ordered before this one had the lock, or been refused.
	now := time.Now()
	d.load(ctx, now)
	d.lookAtHold(ctx, now)
	d.mu.Lock()
	if stored := loadRecord(ctx, d.storage, d.recordKey(path.Join("names", d.name)), now); !stored.Next.IsZero() || stored.Serial != "" {
		d.record = stored
	}
	before := d.record
	d.mu.Unlock()
	if now.Before(d.due()) {
		return
	}
	marked := before
	marked.failed(now, orderPauses, 0, "the order was not followed to its end")
	err := d.storage.probe(ctx)
	if err == nil {
		err = d.keep(ctx, marked)
	}
	if err != nil {
		if ctx.Err() == nil { // else it tells of the end, and not of the storage
			d.tellStorage(err)
		}
		d.keep(ctx, before)
		d.wait = now.Add(storagePause)
		return
	}
	d.tellStorage(nil)
	d.conclude(ctx, before, d.attempt(ctx, before))
}

// result is how an attempt ended.
type result struct {
	*attempt
	renewal bool
	err     error
}

// attempt makes one attempt, with a key of its own, whose result is in the
// storage and in force when it ends without an error.
func (d *domain) attempt(ctx context.Context, before record) result {
	r := result{attempt: new(attempt)}
	held := d.served.Load()
	if r.renewal = held != nil && d.broken == ""; r.renewal && before.Failures == 0 {
		r.replaces = held.Leaf // a CA may refuse it: once is enough
	}
	ctx, cancel := context.WithTimeout(context.WithValue(ctx, attemptKey{}, r.attempt), attemptTimeout)
	defer cancel()
	if r.renewal {
		r.err = d.config.RenewCertSync(ctx, d.name, true)
	} else {
		if d.broken != "" {
			// What is there would pass for a certificate that need not be ordered.
			if r.err = d.storage.Delete(ctx, certmagic.StorageKeys.CertsSitePrefix(d.key, d.name)); r.err != nil {
				return r
			}
			d.broken = ""
		}
		r.err = d.config.ObtainCertSync(ctx, d.name)
	}
	if r.err == nil {
		if d.load(ctx, time.Now()); d.served.Load() == held {
			r.err = fmt.Errorf("what the CA gave cannot be used: %s", d.broken)
		}
	}
	return r
}

// conclude notes how an attempt ended and says so. before is the record without it.
func (d *domain) conclude(ctx context.Context, before record, r result) {
	now := time.Now()
	if r.err == nil {
		d.reached(ctx)
		leaf := d.served.Load().Leaf
		var done record
		done.noted(leaf, r.info, now)
		if err := d.keep(ctx, done); err != nil && ctx.Err() == nil {
			d.tellStorage(d.storage.unusable(err))
		}
		if r.renewal {
			d.orders.renewed.Add(1)
			d.log.Info("certificate renewed", "domain", d.name, "not_after", leaf.NotAfter, "next_renewal", done.renewAt(leaf))
		} else {
			d.orders.obtained.Add(1)
			d.log.Info("certificate obtained", "domain", d.name, "not_after", leaf.NotAfter, "next_renewal", done.renewAt(leaf))
		}
		return
	}
	cause := r.err
	if inner := errors.Unwrap(cause); inner != nil {
		cause = inner // certmagic's wrapping says the name once more
	}
	if _, ok := errors.AsType[*unreached](r.err); ok {
		d.keep(ctx, before) // nothing was ordered
		if ctx.Err() == nil {
			d.refused(ctx, now, cause, r.retryAfter)
		}
		return
	}
	if ctx.Err() != nil {
		return // the order is left behind; what was noted before it stands
	}
	d.reached(ctx)
	d.orders.failed.Add(1)
	after := before
	after.failed(now, orderPauses, r.retryAfter, quoted(cause.Error()))
	if err := d.keep(ctx, after); err != nil && ctx.Err() == nil {
		d.tellStorage(d.storage.unusable(err))
	}
	told := []any{"domain", d.name, "error", after.Fault, "failures", after.Failures, "next_attempt", after.Next}
	if cert := d.served.Load(); cert != nil {
		d.log.Error("certificate not renewed; the one in force is served on", append(told, "not_after", cert.Leaf.NotAfter)...)
	} else {
		d.log.Error("certificate not obtained", told...)
	}
}

// next is when the name wants to be looked after again.
func (d *domain) next(now time.Time) time.Time {
	at := d.due()
	look := now.Add(lookInterval) // another process may have ordered it
	if d.served.Load() != nil {
		look = d.asks()
	}
	if look.Before(at) {
		at = look
	}
	return at
}

// due is when a certificate is to be ordered: when it is wanted, and nothing
// forbids it.
func (d *domain) due() time.Time {
	d.mu.Lock()
	defer d.mu.Unlock()
	var at time.Time
	if cert := d.served.Load(); cert != nil {
		at = d.record.renewAt(cert.Leaf)
	}
	for _, other := range []time.Time{d.record.Next, d.wait, d.firstAt, d.heldUntil()} {
		if other.After(at) {
			at = other
		}
	}
	return at
}

// asks is when to ask the CA about the renewal.
func (d *domain) asks() time.Time {
	d.mu.Lock()
	defer d.mu.Unlock()
	at := d.record.AskNext
	if cert := d.served.Load(); cert != nil && d.record.Serial != serialOf(cert.Leaf) {
		at = time.Time{}
	}
	if held := d.heldUntil(); held.After(at) {
		at = held
	}
	return at
}

// keep makes a record the name's, and stores it.
func (d *domain) keep(ctx context.Context, r record) error {
	d.mu.Lock()
	d.record = r
	d.mu.Unlock()
	return r.store(ctx, d.storage, d.recordKey(path.Join("names", d.name)))
}

// load takes the certificate from the storage, if it is another one than before.
func (d *domain) load(ctx context.Context, now time.Time) {
	chain, err := d.storage.Load(ctx, certmagic.StorageKeys.SiteCert(d.key, d.name))
	if !d.reads(err) || errors.Is(err, fs.ErrNotExist) || err == nil && bytes.Equal(chain, d.chain) {
		return
	}
	var cert tls.Certificate
	if err == nil {
		var key []byte
		if key, err = d.storage.Load(ctx, certmagic.StorageKeys.SitePrivateKey(d.key, d.name)); !d.reads(err) {
			return
		} else if err == nil {
			cert, err = tls.X509KeyPair(chain, key)
		}
	}
	if err == nil {
		err = cert.Leaf.VerifyHostname(d.name)
	}
	if err != nil {
		if text := quoted(err.Error()); text != d.broken {
			d.broken = text
			d.log.Warn("a stored certificate cannot be used", "domain", d.name, "storage", d.storage.name(), "error", text)
		}
		return
	}
	d.broken, d.chain, d.stapled = "", chain, time.Time{}
	d.publish(&cert)
	switch {
	case now.After(cert.Leaf.NotAfter):
		d.log.Warn("the stored certificate has expired by the clock of this machine, and is served all the same until there is another", "domain", d.name, "not_after", cert.Leaf.NotAfter)
	case now.Before(cert.Leaf.NotBefore):
		d.log.Warn("the stored certificate is not valid yet by the clock of this machine, and is served all the same; is the clock right?", "domain", d.name, "not_before", cert.Leaf.NotBefore)
	}
}

func (d *domain) publish(cert *tls.Certificate) {
	d.served.Store(cert)
	select {
	case d.changed <- struct{}{}:
	default: // the store will look anyway
	}
}

// ask asks the CA when the certificate is to be renewed (RFC 9773).
func (d *domain) ask(ctx context.Context) {
	leaf := d.served.Load().Leaf
	info, err := d.authority.Load().renewalInfo(ctx, leaf)
	if ctx.Err() != nil {
		return
	}
	d.mu.Lock()
	r := d.record
	d.mu.Unlock()
	now := time.Now()
	switch {
	case errors.Is(err, acme.ErrUnsupported):
		r.noted(leaf, nil, now)
		r.AskNext = now.Add(maxAskInterval)
	case err != nil: // the last word stays
		if r.Serial != serialOf(leaf) {
			r.noted(leaf, nil, now)
		}
		r.AskNext = now.Add(askInterval)
	default:
		before := r.renewAt(leaf)
		r.noted(leaf, &info, now)
		if at := r.renewAt(leaf); at.Before(before.Add(-24 * time.Hour)) {
			d.log.Warn("the CA wants the certificate renewed early", "domain", d.name, "at", at, "explanation", quoted(info.ExplanationURL))
		}
	}
	// That it is not stored costs one question after a restart.
	d.keep(ctx, r)
}

// staple fetches the CA's word that the certificate is good, where the
// certificate says from where.
func (d *domain) staple(ctx context.Context, now time.Time) {
	d.stapled = now
	fetched := make(chan *tls.Certificate, 1)
	go func() { // it knows no context: at the end of ctx it is left to its own timeout
		var hashes []string
		cert, err := d.config.CacheManagedCertificate(ctx, d.name)
		if err == nil {
			hashes = append(hashes, cert.Hash())
		}
		d.cache.Remove(hashes) // the store is the cache
		fetched <- &cert.Certificate
	}()
	select {
	case <-ctx.Done():
	case cert := <-fetched:
		if held := d.served.Load(); len(cert.OCSPStaple) > 0 && cert.Leaf != nil && cert.Leaf.Equal(held.Leaf) && !bytes.Equal(cert.OCSPStaple, held.OCSPStaple) {
			d.publish(cert)
		}
	}
}

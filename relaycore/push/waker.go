package push

import (
	"context"
	"errors"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"relayedge/admission"
	"relayedge/relaycore/wire"
)

// Waker keeps the registrations and calls their endpoints. It is safe for
// concurrent use. No method but Test and Close waits for anything.
type Waker struct {
	// Static.
	budget   admission.Windows
	keys     *admission.KeyMaker
	panicked func(fault any)
	client   *http.Client
	ctx      context.Context // ends with Close
	cancel   context.CancelFunc
	wg       sync.WaitGroup // of calls under way

	mu     sync.Mutex
	cfg    Config // changed by a reload
	hosts  hosts  // of cfg
	table  registrations
	queue  queue
	counts Counts
	closed bool
}

// Counts is what became of wake-ups, and what is kept.
type Counts struct {
	Registrations, Bytes, Waiting, InFlight int
	// Evicted counts registrations that were forgotten for lack of room.
	Evicted uint64
	// Coalesced counts wake-ups that another one, not begun yet, stands for.
	Coalesced uint64
	// Outcomes counts wake-ups by how they ended.
	Outcomes [Outcomes]uint64
}

// Outcome is how a wake-up ended.
type Outcome int

// The outcomes.
const (
	Woken     Outcome = iota // the service took it
	Gone                     // the service knows the endpoint no more, and it is forgotten
	Refused                  // the service answered with another status
	Failed                   // no answer came
	Forbidden                // the host is not called, or has no public address
	Quiet                    // skipped: the service had asked not to be called for a while
	Spent                    // skipped: the budget of the hour is spent
	Outcomes                 // how many there are
)

var outcomeWords = [Outcomes]string{"woken", "gone", "refused", "failed", "forbidden", "quiet", "spent"}

// String returns the outcome's word.
func (o Outcome) String() string { return outcomeWords[o] }

// Result is what Test reports.
type Result struct {
	Outcome Outcome
	Budget  admission.Decision // zero where the budget was not asked
}

// Registration is an endpoint that is kept, as its client may know it.
type Registration struct {
	ID      string
	Expires time.Time
}

// The faults of calls. None of them tells an endpoint.
var (
	ErrDisabled = errors.New("this relay wakes nobody")
	ErrUnknown  = errors.New("the identity has left no endpoint here")
	ErrBusy     = errors.New("another test of the registration is under way")
	ErrClosed   = errors.New("the relay shuts down")
	// ErrOlder: the request was signed before one that has been heeded.
	ErrOlder = errors.New("a later request of this identity has been heeded already")
)

// Options are what a Waker works with.
type Options struct {
	// Budget counts wake-ups by registration, in windows of BudgetWindow. Its limit
	// is Config.BudgetPerHour, which whoever makes it keeps in step.
	Budget admission.Windows
	// Keys names registrations and their budgets. With a secret of a fleet's own a
	// registration has one budget in all of it, and keeps it over a restart.
	Keys *admission.KeyMaker
	// Embedded are the prefixes whose last 32 bits are an IPv4 address.
	Embedded []netip.Prefix
	// Panicked is told of a panic in a wake-up, where it was recovered; the wake-up
	// alone ends, as Failed. nil: nobody is told.
	Panicked func(fault any)
}

// New returns a waker. The config has been validated.
func New(cfg Config, o Options) *Waker {
	return newWaker(cfg, o, newTransport(func(addr netip.AddrPort) bool { return public(addr.Addr(), o.Embedded) }))
}

func newWaker(cfg Config, o Options, transport http.RoundTripper) *Waker {
	w := &Waker{
		budget: o.Budget, keys: o.Keys, panicked: o.Panicked,
		client: &http.Client{
			Transport: transport,
			CheckRedirect: func(*http.Request, []*http.Request) error {
				return http.ErrUseLastResponse
			},
		},
		table: newRegistrations(), queue: newQueue(),
	}
	w.ctx, w.cancel = context.WithCancel(context.Background())
	w.SetConfig(cfg)
	return w
}

// SetConfig puts another config in force. Endpoints whose hosts it does not
// allow are forgotten; with Enabled false all are.
func (w *Waker) SetConfig(cfg Config) {
	allowed, _ := newHosts(cfg.AllowedHosts) // it has been validated
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cfg, w.hosts, w.queue.most = cfg, allowed, cfg.MaxInFlight
	now := time.Now()
	w.table.bind(cfg, now)
	for _, r := range w.table.byIdentity {
		if !cfg.Enabled || !allowed.allow(r.host) {
			w.forget(r)
		}
	}
	w.dispatch(now)
}

// Register keeps an endpoint for an identity, in place of an earlier one, and
// has it live anew. signedAt is when the client asked for it: an older request
// than the last one is refused.
func (w *Waker) Register(identity wire.Identity, endpoint string, signedAt time.Time, source netip.Prefix) (Registration, error) {
	host, err := hostOf(endpoint)
	if err != nil {
		return Registration{}, err
	}
	id := w.keys.Key("registration", string(identity[:])).String()
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	w.expire(now)
	switch {
	case w.closed:
		return Registration{}, ErrClosed
	case !w.cfg.Enabled:
		return Registration{}, ErrDisabled
	case !w.hosts.allow(host):
		return Registration{}, errHostRefused
	}
	old := w.table.byIdentity[identity]
	if old != nil && signedAt.Before(old.left) {
		return Registration{}, ErrOlder
	}
	if old != nil && old.endpoint == endpoint {
		// Its wake-up goes on, and what its service asked for holds.
		old.left = signedAt
		w.table.renew(old, source, now)
		return Registration{id, old.expires}, nil
	}
	r := &registration{
		identity: identity, id: id, endpoint: endpoint, host: host, left: signedAt,
		budget: w.keys.Key("budget", "conn-cap:"+id+":push"),
	}
	for _, gone := range w.table.put(r, source, now) {
		w.drop(gone)
		if gone != old {
			w.counts.Evicted++
		}
	}
	return Registration{id, r.expires}, nil
}

// Unregister forgets the endpoint of an identity, if there is one.
func (w *Waker) Unregister(identity wire.Identity, signedAt time.Time) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	r := w.table.byIdentity[identity]
	if r == nil {
		return nil
	}
	if signedAt.Before(r.left) {
		return ErrOlder
	}
	w.forget(r)
	return nil
}

// Wake takes a note that something waits for an identity that is away. It
// neither waits nor fails.
func (w *Waker) Wake(identity wire.Identity) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	w.expire(now)
	r := w.table.byIdentity[identity]
	if r == nil || w.closed {
		return
	}
	w.want(r, now)
}

// want has r woken: by the wake-up that waits, by one after that which flies, or
// by one of its own.
func (w *Waker) want(r *registration, now time.Time) {
	switch {
	case r.queued != nil || r.again:
		w.counts.Coalesced++
	case r.flying:
		// Its client may have come and gone between that call and this message.
		r.again = true
	default:
		w.queue.add(r)
		w.dispatch(now)
	}
}

// Test wakes an identity and reports what came of it: after a wake-up that is
// under way, and in one with what waits.
func (w *Waker) Test(ctx context.Context, identity wire.Identity) (Result, error) {
	done := make(chan Result, 1)
	w.mu.Lock()
	now := time.Now()
	w.expire(now)
	r := w.table.byIdentity[identity]
	err := error(nil)
	switch {
	case w.closed:
		err = ErrClosed
	case !w.cfg.Enabled:
		err = ErrDisabled
	case r == nil:
		err = ErrUnknown
	case r.test != nil:
		err = ErrBusy
	default:
		r.test = done
		w.want(r, now)
	}
	w.mu.Unlock()
	if err != nil {
		return Result{}, err
	}
	select {
	case result, ok := <-done:
		if !ok {
			return Result{}, ErrUnknown
		}
		return result, nil
	case <-ctx.Done():
		w.mu.Lock()
		defer w.mu.Unlock()
		if r.test == done {
			r.test = nil
		}
		return Result{}, context.Cause(ctx)
	}
}

// Stats returns what was counted, and what is kept at present.
func (w *Waker) Stats() Counts {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.expire(time.Now())
	c := w.counts
	c.Registrations, c.Bytes = len(w.table.byIdentity), int(w.table.bytes.Held())
	c.Waiting, c.InFlight = w.queue.waiting, w.queue.flying
	return c
}

// Close ends what is under way and forgets everything. It may be called again.
func (w *Waker) Close() {
	w.mu.Lock()
	w.closed = true
	for _, r := range w.table.byIdentity {
		w.forget(r)
	}
	w.mu.Unlock()
	w.cancel()
	w.wg.Wait()
	w.client.CloseIdleConnections()
}

// expire forgets what has lived its time. w.mu is held.
func (w *Waker) expire(now time.Time) {
	for _, r := range w.table.expired(now) {
		w.drop(r)
	}
}

// forget takes a registration out. w.mu is held.
func (w *Waker) forget(r *registration) {
	w.table.remove(r)
	w.drop(r)
}

// drop ends the wake-up of a registration that is in the table no more. w.mu is held.
func (w *Waker) drop(r *registration) {
	w.queue.remove(r)
	r.again = false
	if r.test != nil && !r.flying {
		close(r.test)
		r.test = nil
	}
}

// dispatch has fly who may. w.mu is held.
func (w *Waker) dispatch(now time.Time) {
	for !w.closed {
		r := w.queue.next()
		if r == nil {
			return
		}
		r.flying = true
		test := r.test
		r.test = nil
		skip := now.Before(r.quiet) && test == nil
		timeout := w.cfg.timeout()
		w.wg.Go(func() { w.fly(r, test, skip, timeout) })
	}
}

// contained is call within its time, and with a panic in it for a failure: nobody
// else would recover it.
func (w *Waker) contained(r *registration, timeout time.Duration) (result Result, quiet time.Duration) {
	ctx, cancel := context.WithTimeout(w.ctx, timeout)
	defer cancel()
	defer func() {
		if fault := recover(); fault != nil {
			result.Outcome, quiet = Failed, 0
			if w.panicked != nil {
				w.panicked(fault)
			}
		}
	}()
	return w.call(ctx, r)
}

// fly is one wake-up, from the budget to what its outcome means.
func (w *Waker) fly(r *registration, test chan Result, skip bool, timeout time.Duration) {
	var result Result
	var quiet time.Duration
	if skip {
		result.Outcome = Quiet
	} else {
		result, quiet = w.contained(r, timeout)
	}
	if test != nil {
		test <- result
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	w.counts.Outcomes[result.Outcome]++
	w.queue.landed(r.host)
	r.flying = false
	switch kept := w.table.kept(r); {
	case kept && result.Outcome == Gone:
		w.forget(r)
	case kept:
		if quiet > 0 {
			r.quiet = now.Add(quiet)
		}
		if r.again {
			r.again = false
			w.queue.add(r)
		}
	default:
		w.drop(r) // of whom a test may wait that came meanwhile
	}
	w.dispatch(now)
}

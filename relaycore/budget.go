package relaycore

import (
	"sync"
	"sync/atomic"

	"relayedge/admission"
)

// budget bounds what all sessions and connections of the HTTP API together hold of
// one kind of memory. Its ledger knows what each source holds. Who charges a budget
// and finds it spent has the heaviest of them, of the heaviest source, go, and waits for nobody: what
// that one holds counts no more, although it takes a moment to be freed.
//
// What is held can exceed the limit by what is being freed, and by the latest
// piece of each goroutine that runs, which is charged once it is there.
type budget struct {
	why ending // static; of a session that is shed

	limit atomic.Int64 // changed by a reload

	// What counts: a copy of the ledger's sum, for those who only look.
	counts atomic.Int64

	// Guarded by mu, under which no other lock is taken.
	mu     sync.Mutex
	ledger *admission.Shares[*account]
	held   int64 // all that is held, with what is about to be freed
}

func newBudget(limit int, why ending) *budget {
	b := &budget{why: why, ledger: admission.NewShares[*account]()}
	b.limit.Store(int64(limit))
	return b
}

// bearer is who holds an account: a session, or a connection of the HTTP API.
type bearer interface {
	// shed ends it at once, for the budget's sake. It waits for nobody.
	shed(ending)
}

// account is what one bearer holds of a budget, in bytes of capacity. It must
// not be copied. Its methods may race with each other.
type account struct {
	// Static.
	budget *budget
	bearer bearer

	// Guarded by budget.mu.
	holding admission.Holding[*account]
	bytes   int64 // what is held; the holding has it until it is written off
	off     bool  // written off
}

// open makes the account one of a bearer's, for which payer pays.
func (a *account) open(b *budget, c bearer, payer source) {
	a.budget, a.bearer = b, c
	a.holding = b.ledger.Holding(payer.key(), a)
}

// spent reports whether more is held than may be.
func (b *budget) spent() bool { return b.counts.Load() > b.limit.Load() }

// charge changes what the account holds, with budget.mu held.
func (a *account) charge(n int64) {
	b := a.budget
	a.bytes += n
	b.held += n
	if !a.off {
		b.ledger.Add(&a.holding, n)
	}
}

// add charges n bytes, or gives -n back.
func (a *account) add(n int) {
	b := a.budget
	b.mu.Lock()
	defer b.mu.Unlock()
	a.charge(int64(n))
	b.counts.Store(b.ledger.Held())
}

// move has another account of the budget hold n bytes of this one.
func (a *account) move(to *account, n int) {
	b := a.budget
	b.mu.Lock()
	defer b.mu.Unlock()
	a.charge(-int64(n))
	to.charge(int64(n))
	b.counts.Store(b.ledger.Held())
}

// writeOff lets the account count no more: its session is about to free what it holds.
func (a *account) writeOff() {
	b := a.budget
	b.mu.Lock()
	defer b.mu.Unlock()
	b.writeOff(a)
}

func (b *budget) writeOff(a *account) {
	b.ledger.Drop(&a.holding)
	a.off = true
	b.counts.Store(b.ledger.Held())
}

// balance is what the account holds, and whether it still counts.
func (a *account) balance() (n int64, live bool) {
	a.budget.mu.Lock()
	defer a.budget.mu.Unlock()
	return a.bytes, !a.off
}

// sums are what is held, and what of that counts.
func (b *budget) sums() (held, counts int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.held, b.ledger.Held()
}

// condemn chooses the bearer that must go for the budget to hold, and writes
// off what it holds: of the source that holds the most, the one that holds
// the most. It returns nil where what they hold fits. Beside the ledger
// it looks at those of that source alone.
func (b *budget) condemn() bearer {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ledger.Held() <= b.limit.Load() {
		return nil
	}
	pays := b.ledger.Heaviest().Oldest
	for h := pays.Newer(); h != nil; h = h.Newer() {
		if h.Amount() > pays.Amount() {
			pays = h
		}
	}
	b.writeOff(pays.Owner)
	return pays.Owner.bearer
}

// makeRoom ends sessions, the caller's among them if it is the heaviest, until
// what the others hold fits. It reports whether the budget was spent. It waits
// for nobody, and no lock of a session or of the directory may be held.
func (b *budget) makeRoom() bool {
	if !b.spent() {
		return false
	}
	for {
		c := b.condemn()
		if c == nil {
			return true
		}
		c.shed(b.why)
	}
}

// shed ends the session at once, also one that has ended and has its last words
// still to write. Its queue is freed here; the rest as soon as its goroutines wake.
func (c *session) shed(why ending) {
	c.end(why)
	c.out.drop()
	c.io.Close()
}

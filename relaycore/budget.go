package relaycore

import (
	"iter"
	"sync/atomic"
)

// budget bounds what all sessions together hold of one kind of memory. Charging
// is two atomic additions. Only a charge that finds the budget spent looks at
// all sessions, and it waits for none of them: who holds the most goes, and
// what that one holds counts no more, although it takes a moment to be freed.
//
// What is held can exceed the limit by what is being freed, and by the latest
// piece of each goroutine that runs, which is charged once it is there.
type budget struct {
	// Static.
	limit int64
	why   ending // of a session that is shed
	of    func(*session) *account

	held atomic.Int64
	lost atomic.Int64 // of held, what is about to be freed
}

// spent reports whether more is held than may be.
func (b *budget) spent() bool { return b.held.Load()-b.lost.Load() > b.limit }

// heaviest returns the session that must go for the budget to hold: of the
// source that holds the most, the session that holds the most. It returns nil
// where what the sessions hold fits.
func (b *budget) heaviest(sessions iter.Seq[*session]) *session {
	shares := make(map[source]int64)
	var total int64
	for c := range sessions {
		if n, live := b.of(c).balance(); live {
			shares[c.source] += n
			total += n
		}
	}
	if total <= b.limit {
		return nil
	}
	var from source
	most := int64(-1)
	for src, n := range shares {
		if n > most {
			from, most = src, n
		}
	}
	var pays *session
	most = -1
	for c := range sessions {
		if c.source != from {
			continue
		}
		if n, live := b.of(c).balance(); live && n > most {
			pays, most = c, n
		}
	}
	return pays
}

// account is what one session holds of a budget, in bytes of capacity. Its
// methods may race with each other.
type account struct {
	budget *budget      // static
	bytes  atomic.Int64 // with the bit writtenOff once it is written off
}

// writtenOff marks an account that counts no more. No session holds 4 EiB.
const writtenOff = 1 << 62

// add charges n bytes, or gives -n back.
func (a *account) add(n int) {
	after := a.bytes.Add(int64(n))
	a.budget.held.Add(int64(n))
	if after&writtenOff != 0 {
		a.budget.lost.Add(int64(n))
	}
}

// move has another account hold n bytes of this one.
func (a *account) move(to *account, n int) {
	var lost int64
	if a.bytes.Add(-int64(n))&writtenOff != 0 {
		lost -= int64(n)
	}
	if to.bytes.Add(int64(n))&writtenOff != 0 {
		lost += int64(n)
	}
	if lost != 0 {
		a.budget.lost.Add(lost)
	}
}

// writeOff lets the account count no more: its session is about to free what it holds.
func (a *account) writeOff() {
	if before := a.bytes.Or(writtenOff); before&writtenOff == 0 {
		a.budget.lost.Add(before)
	}
}

// balance is what the account holds, and whether it still counts.
func (a *account) balance() (n int64, live bool) {
	n = a.bytes.Load()
	return n &^ writtenOff, n&writtenOff == 0
}

// makeRoom ends sessions, the caller's among them if it is the heaviest, until
// what the others hold fits the budget. It reports whether the budget was spent.
// It waits for nobody, and no lock of a session or of the directory may be held.
func (s *Server) makeRoom(b *budget) bool {
	if !b.spent() {
		return false
	}
	for b.spent() {
		c := s.condemn(b)
		if c == nil {
			break // others have made room meanwhile
		}
		c.shed(b.why)
	}
	return true
}

// condemn chooses who is to be shed and writes off what that session holds. It
// is where a ledger of the sources' shares would answer in place of a scan.
func (s *Server) condemn(b *budget) *session {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := b.heaviest(func(yield func(*session) bool) {
		for _, c := range s.conns {
			if c != nil && !yield(c) {
				return
			}
		}
	})
	if c != nil {
		b.of(c).writeOff()
	}
	return c
}

// shed ends the session at once, also one that has ended and has its last words
// still to write. Its queue is freed here; the rest as soon as its goroutines wake.
func (c *session) shed(why ending) {
	c.end(why)
	c.out.drop()
	c.io.Close()
}

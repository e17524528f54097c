package api

import (
	"context"
	"crypto/sha256"
	"net/netip"
	"sync"
	"time"

	"relayedge/admission"
	"relayedge/relaycore/wire"
)

// The bounds of kept answers.
const (
	MostAnswers  = 100_000
	AnswerBudget = 64 << 20
	AnswerLife   = 24 * time.Hour
	// answerOverhead is what an answer costs beside its body: itself, and its places
	// in the tables. A test measures it.
	answerOverhead = 672
)

// answers keeps the first answers to messages that were accepted, by the names
// under which they may be asked for again. When there are too many, the source
// that has the most forgets its oldest. It waits for nobody with its lock held.
type answers struct {
	// Static.
	most   int
	budget int64
	life   time.Duration

	// Guarded by mu, as the fields of kept are until done is closed.
	mu     sync.Mutex
	byName map[name]*kept
	ledger *admission.Shares[*kept] // bytes
	n      int                      // of those in the line
	oldest *kept                    // the line of those that are decided
	newest *kept
}

// name is what an answer may be asked for by: the hash of its sender and either
// the message's id or a key of the sender's choice.
type name [32]byte

// kept is an answer, or the place of one that is being decided.
type kept struct {
	names   []name
	content [32]byte // the hash of what was asked
	done    chan struct{}
	first   *reply // nil until it is decided; then what is kept
	at      time.Time

	before, behind *kept
	held           admission.Holding[*kept]
}

func newAnswers(most int, budget int64, life time.Duration) *answers {
	return &answers{most: most, budget: budget, life: life, byName: make(map[name]*kept), ledger: admission.NewShares[*kept]()}
}

// namesOf are the names of a message: its id, and its key if it has one.
func namesOf(sender wire.Identity, id wire.MessageID, key string) []name {
	of := func(kind byte, value []byte) name {
		return sha256.Sum256(append(append([]byte{kind}, sender[:]...), value...))
	}
	names := []name{of(0, id[:])}
	if key != "" {
		names = append(names, of(1, []byte(key)))
	}
	return names
}

// claim returns the answer that one of the names has got, or the place for the
// first one, which the caller settles. While another decides about the same it
// waits, at most until ctx ends: then it returns neither. It reports a conflict
// where a name is another content's.
func (t *answers) claim(ctx context.Context, from netip.Prefix, names []name, content [32]byte) (mine *kept, first *reply, conflict bool) {
	for {
		k, isMine, first, conflict := t.look(from, names, content)
		switch {
		case conflict:
			return nil, nil, true
		case isMine:
			return k, nil, false
		case first != nil:
			return nil, first, false
		}
		select {
		case <-k.done:
		case <-ctx.Done():
			return nil, nil, false
		}
	}
}

func (t *answers) look(from netip.Prefix, names []name, content [32]byte) (k *kept, isMine bool, first *reply, conflict bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.expire(time.Now())
	for _, n := range names {
		other := t.byName[n]
		if other == nil {
			continue
		}
		if other.content != content {
			return nil, false, nil, true
		}
		if k == nil {
			k = other
		}
	}
	if k != nil {
		return k, false, k.first, false
	}
	k = &kept{names: names, content: content, done: make(chan struct{})}
	k.held = t.ledger.Holding(from, k)
	for _, n := range names {
		t.byName[n] = k
	}
	return k, true, nil, false
}

// settle keeps the first answer, or with nil forgets that it was asked for, and
// wakes those who wait.
func (t *answers) settle(k *kept, first *reply) {
	t.mu.Lock()
	defer t.mu.Unlock()
	defer close(k.done)
	if first == nil {
		t.unname(k)
		return
	}
	k.first, k.at = first, time.Now()
	k.before = t.newest
	if t.newest != nil {
		t.newest.behind = k
	} else {
		t.oldest = k
	}
	t.newest = k
	t.n++
	t.ledger.Add(&k.held, int64(answerOverhead+len(first.body)))
	for t.n > t.most || t.ledger.Held() > t.budget {
		t.forget(t.ledger.Heaviest().Oldest.Owner)
	}
}

func (t *answers) unname(k *kept) {
	for _, n := range k.names {
		delete(t.byName, n)
	}
}

// forget takes out an answer that is decided.
func (t *answers) forget(k *kept) {
	t.unname(k)
	t.ledger.Drop(&k.held)
	if k.before != nil {
		k.before.behind = k.behind
	} else {
		t.oldest = k.behind
	}
	if k.behind != nil {
		k.behind.before = k.before
	} else {
		t.newest = k.before
	}
	t.n--
}

// expire forgets what has lived its time.
func (t *answers) expire(now time.Time) {
	for t.oldest != nil && now.Sub(t.oldest.at) >= t.life {
		t.forget(t.oldest)
	}
}

func (t *answers) stats(now time.Time) (n int, bytes int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.expire(now)
	return t.n, t.ledger.Held()
}

package succession

import (
	"errors"
	"os"
	"slices"
	"sync"
	"time"

	"relayedge/admission"
	"relayedge/internal/handover"
)

// asksWaiting is how many questions of an elder may wait until the gate decides.
const asksWaiting = 1 << 16

// introducePatience is how long an older process may take to speak to one more successor.
const introducePatience = 5 * time.Second

// Successor is the side of a process that follows others. Its methods are safe for
// concurrent use.
type Successor struct {
	// Static.
	gate     *admission.Gate
	requests Requests

	mu     sync.Mutex
	opened bool
	elders []*Followed // that live
}

// Followed is an older process, as its successor sees it.
type Followed struct {
	// Static.
	successor *Successor
	line      *handover.Line
	holds     *admission.Predecessor
	other     func(handover.Message)
	final     chan struct{} // closed when it has told all, and decides no longer
	once      sync.Once     // closes final
	gone      chan struct{} // closed when it has ended

	// Guarded by successor.mu.
	waiting  []ask         // until the gate decides
	catching chan struct{} // closed when it has told all once more; nil: nobody waits
	lining   chan struct{} // the same for when it has another successor
}

// ask is a question of an elder.
type ask struct {
	number uint64
	count  bool // of a request of key
	key    admission.Key
	q      admission.Question
}

// NewSuccessor returns a successor's side of a gate and of what counts requests, which
// decide from Open on.
func NewSuccessor(gate *admission.Gate, requests Requests) *Successor {
	return &Successor{gate: gate, requests: requests}
}

// Follow begins to follow an older process, on a line that it takes over. other is
// called, by one goroutine, with the messages that are not this package's.
func (s *Successor) Follow(line *handover.Line, other func(handover.Message)) *Followed {
	f := &Followed{successor: s, line: line, holds: s.gate.Predecessor(), other: other, final: make(chan struct{}), gone: make(chan struct{})}
	s.mu.Lock()
	s.elders = append(s.elders, f)
	s.mu.Unlock()
	go f.listen()
	return f
}

// Final reports whether the older process has told all, and decides no longer.
func (f *Followed) Final() bool {
	select {
	case <-f.final:
		return true
	default:
		return false
	}
}

// Gone is closed when the older process has ended, and what it held is free.
func (f *Followed) Gone() <-chan struct{} { return f.gone }

// Elders returns the older processes that live, the oldest first.
func (s *Successor) Elders() []*Followed {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.elders)
}

// Await waits until each older process has told all or has ended, and for so long
// at most. latest is the one that hands over, and makes the others known.
func (s *Successor) Await(latest *Followed, patience time.Duration) error {
	late := time.NewTimer(patience)
	defer late.Stop()
	// Behind its last word all that are even older are known.
	if err := latest.toldAll(late.C); err != nil {
		return err
	}
	for _, f := range s.Elders() {
		if err := f.toldAll(late.C); err != nil {
			return err
		}
	}
	return nil
}

func (f *Followed) toldAll(late <-chan time.Time) error {
	select {
	case <-f.final:
	case <-f.gone:
	case <-late:
		return errors.New("an older process does not tell what it holds")
	}
	return nil
}

// Open has the gate decide, also about what older processes ask for.
func (s *Successor) Open() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.opened = true
	for _, f := range s.elders {
		for _, a := range f.waiting {
			f.decide(a)
		}
		f.waiting = nil
	}
}

// CatchUp has every older process tell what has changed since another process has
// begun to decide, which has ended, and waits for it, within bounds. The gate
// decides again from Open on.
func (s *Successor) CatchUp() {
	s.mu.Lock()
	s.opened = false
	s.mu.Unlock()
	late := time.NewTimer(catchUpPatience)
	defer late.Stop()
	for _, f := range s.Elders() {
		if f.await(&f.catching, handover.Message{Kind: kindTakeOver}, late.C) != nil {
			return
		}
	}
}

// Farewell tells the older processes that this one ends on purpose, so that they do
// not take its place.
func (s *Successor) Farewell() {
	for _, f := range s.Elders() {
		f.line.Send(handover.Message{Kind: kindFarewell}) // who does not hear it has ended
	}
}

// decide answers a question.
func (f *Followed) decide(a ask) {
	if a.count {
		f.decideCount(a.number, a.key)
		return
	}
	reason := f.holds.Ask(a.number, a.q, time.Now())
	f.line.Send(handover.Message{Kind: kindAnswer, Body: appendAnswer(nil, a.number, reason)}) // who does not hear it has ended
}

// listen takes what the older process says until it ends. Then all that it held is free.
func (f *Followed) listen() {
	defer f.end()
	for {
		m, err := f.line.Receive()
		if err != nil || !f.hear(m) {
			// What it holds it has as long as it lives.
			f.line.Ended()
			return
		}
	}
}

// hear takes a message, and reports whether it is understood.
func (f *Followed) hear(m handover.Message) bool {
	switch {
	case m.Kind >= Others:
		f.other(m)
	case m.Kind == kindTold:
		t, err := readTold(m.Body)
		return err == nil && f.holds.Hold(t, time.Now()) == nil
	case m.Kind == kindWhole:
		f.line.Send(handover.Message{Kind: kindHeld}) // who does not hear it has ended
	case m.Kind == kindFinal:
		f.once.Do(func() { close(f.final) })
	case m.Kind == kindAsk, m.Kind == kindCount:
		return f.ask(m)
	case m.Kind == kindWindows, m.Kind == kindCredentials:
		return f.inherit(m)
	case m.Kind == kindCaughtUp:
		f.done(&f.catching)
	case m.Kind == kindLined:
		f.done(&f.lining)
	default:
		return false
	}
	return true
}

// ask takes a question, and reports whether it is one.
func (f *Followed) ask(m handover.Message) bool {
	a := ask{count: m.Kind == kindCount}
	var err error
	if a.count {
		a.number, a.key, err = readCount(m.Body)
	} else {
		a.number, a.q, err = readAsk(m.Body)
	}
	if err != nil {
		return false
	}
	s := f.successor
	s.mu.Lock()
	if s.opened {
		s.mu.Unlock()
		f.decide(a)
		return true
	}
	defer s.mu.Unlock()
	if len(f.waiting) >= asksWaiting {
		return false
	}
	f.waiting = append(f.waiting, a)
	return true
}

// done closes what is waited for.
func (f *Followed) done(what *chan struct{}) {
	s := f.successor
	s.mu.Lock()
	defer s.mu.Unlock()
	if *what != nil {
		close(*what)
		*what = nil
	}
}

// await sends a message and waits for what says that it was done.
func (f *Followed) await(what *chan struct{}, m handover.Message, late <-chan time.Time) error {
	done := make(chan struct{})
	f.successor.mu.Lock()
	*what = done
	f.successor.mu.Unlock()
	f.line.Send(m) // where it fails, gone is closed
	select {
	case <-done:
	case <-f.gone:
	case <-late:
		return errors.New("an older process that drains does not answer")
	}
	return nil
}

// Introduce gives every older process a line to one more successor, which those ask
// from then on, and returns the other ends. It fails where one does not answer.
func (s *Successor) Introduce() (ends []*os.File, err error) {
	late := time.NewTimer(introducePatience)
	defer late.Stop()
	defer func() {
		if err != nil {
			closeAll(ends)
			ends = nil
		}
	}()
	for _, f := range s.Elders() {
		theirs, ours, err := handover.Ends()
		if err != nil {
			return ends, err
		}
		ends = append(ends, ours)
		err = f.await(&f.lining, handover.Message{Kind: kindLine, Files: []*os.File{theirs}}, late.C)
		theirs.Close()
		if err != nil {
			return ends, err
		}
	}
	return ends, nil
}

func closeAll(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}

func (f *Followed) end() {
	f.holds.Gone()
	f.line.Close()
	s := f.successor
	s.mu.Lock()
	defer s.mu.Unlock()
	s.elders = slices.DeleteFunc(slices.Clone(s.elders), func(other *Followed) bool { return other == f })
	close(f.gone)
}

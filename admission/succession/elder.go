package succession

import (
	"slices"
	"sync"
	"time"

	"relayedge/admission"
	"relayedge/internal/handover"
)

const (
	// answerPatience is how long an answer of the process that decides is waited for.
	answerPatience = 5 * time.Second
	// catchUpPatience is how long an elder that takes over again waits for what even
	// older ones tell.
	catchUpPatience = 2 * time.Second
)

// Elder is the side of a process that others follow. Its methods are safe for
// concurrent use.
type Elder struct {
	// Static.
	gate  *admission.Gate
	older *Successor
	alone func()
	ends  func()

	// Guarded by mu, which is taken before the gate's lock.
	mu       sync.Mutex
	heirs    []*Heir // that live, the newest last: that one decides
	retired  bool
	resuming bool // it is about to decide again
	over     bool // nobody is to decide here again
	number   uint64
	resumed  chan struct{} // closed when the gate decides again, or is not to
	settled  *sync.Cond    // of mu: an answer has been taken
}

// Heir is one successor, as its elder sees it.
type Heir struct {
	// Static.
	elder *Elder
	line  *handover.Line
	trail *admission.Trail
	other func(handover.Message)
	told  chan struct{} // closed when it has heard all for the first time
	heard sync.Once     // closes told
	gone  chan struct{} // closed when its process has ended

	// Guarded by elder.mu.
	asks     []handover.Message       // to be sent
	waiting  map[uint64]chan answered // by the number of the ask
	open     int                      // asks whose answers have not been taken
	final    bool                     // it is to be told that all was told
	caughtUp int                      // how often it is to be told that it has caught up
}

type answered struct {
	reason   admission.Reason
	decision admission.Decision
}

// NewElder returns the elder's side of a gate. older is what the gate follows by
// itself. alone is called when all heirs have ended and the gate, which was retired,
// decides by itself again. ends is called when a successor says that the service ends.
func NewElder(gate *admission.Gate, older *Successor, alone, ends func()) *Elder {
	e := &Elder{gate: gate, older: older, alone: alone, ends: ends}
	e.settled = sync.NewCond(&e.mu)
	return e
}

// Tell begins to tell one more successor, on a line that it takes over and never
// closes. other is called, by one goroutine, with the messages that are not this
// package's.
func (e *Elder) Tell(line *handover.Line, other func(handover.Message)) *Heir {
	h := &Heir{
		elder: e, line: line, trail: e.gate.Trail(), other: other,
		told: make(chan struct{}), gone: make(chan struct{}), waiting: make(map[uint64]chan answered),
	}
	e.mu.Lock()
	e.heirs = append(e.heirs, h)
	e.mu.Unlock()
	go h.speak()
	go h.listen()
	return h
}

// Told is closed when the heir has heard all for the first time.
func (h *Heir) Told() <-chan struct{} { return h.told }

// Gone is closed when the heir has ended.
func (h *Heir) Gone() <-chan struct{} { return h.gone }

// Retire has the heirs decide, the newest of them. It reports whether one lives.
func (e *Elder) Retire() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.heirs) == 0 {
		return false
	}
	if e.retired {
		return true
	}
	e.retired, e.resumed = true, make(chan struct{})
	e.gate.Retire(e.ask)
	for _, h := range e.heirs {
		h.final = true
		h.trail.Stir()
	}
	return true
}

// Retired reports whether another process decides.
func (e *Elder) Retired() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.retired
}

// Over has the gate never decide again: the successor ends on purpose, and the
// service with it.
func (e *Elder) Over() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.over = true
}

// quiet waits until no question to another heir is open, so that what this one is
// told from here on holds all that the others have allowed.
func (h *Heir) quiet() {
	e := h.elder
	e.mu.Lock()
	defer e.mu.Unlock()
	for slices.ContainsFunc(e.heirs, func(other *Heir) bool { return other != h && other.open > 0 }) {
		e.settled.Wait()
	}
}

// ask asks the newest heir. After all of them have ended it waits until the gate
// decides again, and says that nobody has answered.
func (e *Elder) ask(q admission.Question) admission.Answered {
	a, number, h := e.question(func(number uint64) handover.Message {
		return handover.Message{Kind: kindAsk, Body: appendAsk(nil, number, q)}
	})
	if h == nil {
		return admission.Answered{Reason: a.reason}
	}
	return admission.Answered{Reason: a.reason, Number: number, Trail: h.trail, Taken: h.taken}
}

// taken says that what follows from an answer stands.
func (h *Heir) taken() {
	h.elder.mu.Lock()
	defer h.elder.mu.Unlock()
	h.open--
	h.elder.settled.Broadcast()
}

// question asks the newest heir, and the next newest where that ends meanwhile. No
// heir: there is none any longer. With an heir taken must be called.
func (e *Elder) question(message func(number uint64) handover.Message) (answered, uint64, *Heir) {
	late := time.NewTimer(answerPatience)
	defer late.Stop()
	for {
		e.mu.Lock()
		if len(e.heirs) == 0 && !e.retired {
			e.mu.Unlock()
			return answered{}, 0, nil
		}
		if len(e.heirs) == 0 {
			resumed := e.resumed
			e.mu.Unlock()
			<-resumed
			e.mu.Lock()
			defer e.mu.Unlock()
			if e.over {
				return answered{reason: admission.StoreUnavailable}, 0, nil
			}
			return answered{}, 0, nil
		}
		h := e.heirs[len(e.heirs)-1]
		e.number++
		number, answer := e.number, make(chan answered, 1)
		h.waiting[number] = answer
		h.asks = append(h.asks, message(number))
		h.open++
		e.mu.Unlock()
		h.trail.Stir()
		select {
		case a := <-answer:
			return a, number, h
		case <-h.gone:
			h.taken()
		case <-late.C:
			e.mu.Lock()
			delete(h.waiting, number)
			e.mu.Unlock()
			return answered{reason: admission.StoreUnavailable}, number, h
		}
	}
}

// answer takes the answer to a question.
func (h *Heir) answer(number uint64, a answered) {
	e := h.elder
	e.mu.Lock()
	defer e.mu.Unlock()
	answer, waits := h.waiting[number]
	if !waits {
		// Nobody waits any longer, so there is no connection to be told of.
		h.trail.Settle(number)
		return
	}
	delete(h.waiting, number)
	answer <- a
}

// lost forgets the heir, once: its process has ended. Behind the last one the gate
// decides by itself.
func (h *Heir) lost() {
	e := h.elder
	e.mu.Lock()
	defer e.mu.Unlock()
	i := slices.Index(e.heirs, h)
	if i < 0 {
		return
	}
	e.heirs = slices.Delete(slices.Clone(e.heirs), i, i+1)
	h.trail.End()
	clear(h.waiting)
	close(h.gone)
	if len(e.heirs) == 0 && e.retired && !e.resuming {
		e.resuming = true
		go e.resume()
	}
}

// resume has the gate decide again.
func (e *Elder) resume() {
	e.mu.Lock()
	over := e.over
	if over {
		close(e.resumed)
	}
	e.mu.Unlock()
	if over {
		return
	}
	e.older.CatchUp()
	e.mu.Lock()
	e.retired, e.resuming = false, false
	e.gate.Resume()
	close(e.resumed)
	e.mu.Unlock()
	e.older.Open()
	e.alone()
}

// speak tells the heir what there is to tell until it ends.
func (h *Heir) speak() {
	e := h.elder
	first := true
	for {
		select {
		case <-h.trail.Wake():
		case <-h.gone:
			return
		}
		for whole := false; !whole; {
			// Looked at before what is told: what was allowed until then is in it.
			e.mu.Lock()
			final, caughtUp, messages := h.final, h.caughtUp, h.asks
			h.asks = nil
			e.mu.Unlock()
			told := h.trail.Next(toldKeys, time.Now())
			messages = append(messages, handover.Message{Kind: kindTold, Body: appendTold(nil, told)})
			if whole = told.Whole; whole {
				if first {
					messages = append(messages, handover.Message{Kind: kindWhole})
				}
				first = false
				if final {
					messages = append(messages, handover.Message{Kind: kindFinal})
				}
				for range caughtUp {
					messages = append(messages, handover.Message{Kind: kindCaughtUp})
				}
			}
			for _, m := range messages {
				if h.line.Send(m) != nil {
					return // it has ended, as listen finds out
				}
			}
			if !whole {
				continue
			}
			e.mu.Lock()
			h.final = h.final && !final
			h.caughtUp -= caughtUp
			e.mu.Unlock()
		}
	}
}

// listen takes what the heir says until its process ends. While that lives it is the
// one that decides, whatever it says: two that do would be worse than none.
func (h *Heir) listen() {
	defer h.lost()
	for {
		m, err := h.line.Receive()
		if err != nil || !h.hear(m) {
			h.line.Ended()
			h.line.Close()
			return
		}
	}
}

// hear takes a message, and reports whether it is understood.
func (h *Heir) hear(m handover.Message) bool {
	switch {
	case m.Kind >= Others:
		h.other(m)
	case m.Kind == kindAnswer:
		number, reason, err := readAnswer(m.Body)
		if err != nil {
			return false
		}
		h.answer(number, answered{reason: reason})
	case m.Kind == kindCounted:
		number, d, err := readCounted(m.Body)
		if err != nil {
			return false
		}
		h.answer(number, answered{decision: d})
	case m.Kind == kindTakeOver:
		h.takesOver()
	case m.Kind == kindHeld:
		h.heard.Do(func() { close(h.told) })
	case m.Kind == kindFarewell:
		h.elder.Over()
		h.elder.ends()
	case m.Kind == kindLine:
		return h.elder.followedByOne(m, h)
	default:
		return false
	}
	return true
}

// takesOver forgets the heirs that are newer: this one says that they have ended.
// Then it is told all, so that it decides by what they have allowed.
func (h *Heir) takesOver() {
	e := h.elder
	e.mu.Lock()
	var newer []*Heir
	if i := slices.Index(e.heirs, h); i >= 0 {
		newer = slices.Clone(e.heirs[i+1:])
	}
	e.mu.Unlock()
	for _, other := range newer {
		other.lost()
	}
	e.mu.Lock()
	h.caughtUp++
	e.mu.Unlock()
	h.trail.Stir()
}

// followedByOne takes the line to one more successor, which an heir hands over to. It
// reports whether there is one.
func (e *Elder) followedByOne(m handover.Message, by *Heir) bool {
	e.mu.Lock()
	known := slices.Contains(e.heirs, by)
	e.mu.Unlock()
	if !known || len(m.Files) != 1 {
		// One that has been said to have ended can have no successor either.
		return false
	}
	line, err := handover.LineOf(m.Files[0])
	if err != nil {
		return false
	}
	next := e.Tell(line, by.other)
	go func() { // for listen has to hear the answers that are waited for
		next.quiet()
		e.mu.Lock()
		next.final = true
		e.mu.Unlock()
		next.trail.Stir()
		by.line.Send(handover.Message{Kind: kindLined})
	}()
	return true
}

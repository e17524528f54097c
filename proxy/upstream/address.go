package upstream

import (
	"time"

	"relayedge/internal/hostport"
)

// downFor is how long a failed dial counts where no check finds out.
const downFor = 10 * time.Second

// tellEvery is the least time between two lines about one address: dials are
// what clients make them, and so is the number of changes.
const tellEvery = 10 * time.Second

// lostAfter is how many checks in a row fail before open connections to the
// address are taken for lost, where when_down says so: one that fails is often a
// relay that restarts or is busy, and its connections live on.
const lostAfter = 3

// address is one place of an upstream. All but its target is guarded by the
// upstream's mutex.
type address struct {
	text   string
	target hostport.Target

	dialling int
	links    map[*Link]struct{}
	removed  bool // by SetConfig; its connections may live on

	failedAt time.Time // of the last failure since the last success
	failure  error     // of the last dial or check
	checks   int       // that failed in a row

	toldDown   bool // what the log says
	lastToldAt time.Time
	telling    *time.Timer // tells what came too soon after the last line; nil: nothing did
}

func newAddress(text string) *address {
	target, _ := hostport.ParseTarget(text) // Validate has refused what fails
	return &address{text: text, target: target, links: make(map[*Link]struct{})}
}

// held is how many connections the address has, dials in flight included.
func (a *address) held() int { return a.dialling + len(a.links) }

// remove has the address be no more: nothing is told about it any longer.
func (a *address) remove() {
	a.removed = true
	if a.telling != nil {
		a.telling.Stop()
		a.telling = nil
	}
}

// note keeps what a dial or a check said about an address, and has the log say
// what has changed since it spoke of it last: at most every ten seconds, but in
// the end always.
func (u *Upstream) note(a *address, err error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.noteLocked(a, err)
}

// noteLocked requires mu.
func (u *Upstream) noteLocked(a *address, err error) {
	a.failedAt, a.failure = time.Time{}, err
	if err != nil {
		a.failedAt = time.Now()
	} else {
		a.checks = 0
	}
	if a.removed {
		return
	}
	if wait := tellEvery - time.Since(a.lastToldAt); a.lastToldAt.IsZero() || wait <= 0 {
		u.tell(a)
	} else if (err != nil) != a.toldDown && a.telling == nil {
		a.telling = time.AfterFunc(wait, func() {
			u.mu.Lock()
			defer u.mu.Unlock()
			if a.removed {
				return
			}
			a.telling = nil
			u.tell(a)
		})
	}
}

// noteLocal has the log say, at most every ten seconds, that it is our own want
// that turns clients away.
func (u *Upstream) noteLocal(a *address, err error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if now := time.Now(); u.localToldAt.IsZero() || now.Sub(u.localToldAt) >= tellEvery {
		u.localToldAt = now
		u.log.Warn("this machine has no port or descriptor left to connect from; the relay is not to blame: docs/tuning.md says what to do", "upstream", u.Name, "address", a.text, "error", err)
	}
}

// noteCheck is note for a check, whose failures are counted: connections are
// lost by them, and not by the dials that clients cause.
func (u *Upstream) noteCheck(a *address, err error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.noteLocked(a, err)
	if err == nil {
		return
	}
	a.checks++
	u.closeLost(a)
}

// tell requires mu. It logs how an address is, if the log says otherwise.
func (u *Upstream) tell(a *address) {
	down := a.failure != nil
	if down == a.toldDown {
		return
	}
	a.toldDown, a.lastToldAt = down, time.Now()
	if !down {
		u.log.Info("the relay answers again", "upstream", u.Name, "address", a.text)
		return
	}
	others := 0
	for _, other := range u.addresses {
		if other != a && u.up(other) {
			others++
		}
	}
	if others > 0 {
		u.log.Warn("the relay cannot be reached: clients go to its other addresses until it answers", "upstream", u.Name, "address", a.text, "others_up", others, "error", a.failure)
	} else {
		u.log.Warn("the relay cannot be reached: clients are turned away until it answers", "upstream", u.Name, "address", a.text, "error", a.failure)
	}
}

// closeLost requires mu. It ends the connections of an address that is lost,
// where when_down says so.
func (u *Upstream) closeLost(a *address) {
	if !u.lost(a) {
		return
	}
	for link := range a.links {
		link.lose()
	}
}

// lost requires mu.
func (u *Upstream) lost(a *address) bool {
	return u.Config().WhenDown == "close" && (a.removed || a.checks >= lostAfter)
}

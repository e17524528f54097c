package admission

import "time"

// verdict gathers what the windows say of one request: the full one that resets
// last, or else the one that has the least left. Of equals it keeps the first.
type verdict struct {
	wait  int64 // 0: none is full
	named standing
	off   bool // no window counts
}

// standing is the window that a verdict names.
type standing struct {
	scope       Scope
	window      Window
	limit, left int64
	reset       int64 // from now, until nothing counts there; where it is full, until there is room
	charged     int64 // the same once this request is charged
}

func newVerdict() verdict { return verdict{off: true} }

// bucket hears a token bucket of limit units a length; 0 is off, -1 refuses all.
func (v *verdict) bucket(scope Scope, limit, length int64, t tokens, at int64) {
	n := standing{scope: scope, window: Minute, limit: limit}
	switch {
	case limit == 0:
		return
	case limit < 0:
		v.full(n, length)
		return
	}
	p := paceOf(limit, length)
	if wait := t.wait(p, at); wait > 0 {
		v.full(n, wait)
		return
	}
	n.left, n.reset = t.left(p, at), t.owes(at)
	n.charged = n.reset + p.cost
	v.room(n)
}

// slide hears a sliding window.
func (v *verdict) slide(scope Scope, window Window, r slideRule, s *slide, at int64) {
	n := standing{scope: scope, window: window, limit: r.limit}
	switch {
	case r.limit == 0:
		return
	case r.limit < 0:
		v.full(n, r.length)
		return
	}
	if wait := s.wait(r, at); wait > 0 {
		v.full(n, wait)
		return
	}
	n.left = r.limit - s.total
	n.reset, n.charged = s.gone(r, at), arrivalAt(at).leaves(r.length, at)-at
	v.room(n)
}

func (v *verdict) full(n standing, wait int64) {
	if v.off = false; wait > v.wait {
		n.left, n.reset = 0, wait
		v.wait, v.named = wait, n
	}
}

func (v *verdict) room(n standing) {
	if v.wait == 0 && (v.off || n.left < v.named.left) {
		v.named = n
	}
	v.off = false
}

// spend says that what was allowed was charged.
func (v *verdict) spend() {
	v.named.left, v.named.reset = max(0, v.named.left-1), v.named.charged
}

func (v *verdict) decision(now time.Time) Decision {
	if v.off {
		return Decision{Allowed: true, Reset: now.Round(0)}
	}
	return Decision{
		Allowed:    v.wait == 0,
		Limit:      v.named.limit,
		Remaining:  v.named.left,
		Reset:      wallAfter(now, v.named.reset),
		RetryAfter: time.Duration(v.wait),
		Scope:      v.named.scope,
		Window:     v.named.window,
	}
}

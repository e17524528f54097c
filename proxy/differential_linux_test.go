package proxy

import (
	"runtime"
	"slices"
	"testing"
	"time"
)

// TestDifferentialOverKernelSockets plays scripts in which nobody waits for a
// limit. When something happened is left open.
func TestDifferentialOverKernelSockets(t *testing.T) {
	differential(t, false, 150, playOverKernel)
}

func playOverKernel(t *testing.T, s script) *played {
	w := way{front: "IPv4", relay: "tcp", tls: s.tls, out: "none"}
	e := newKernelEdge(t, w, nil)
	p := &play{t: t, began: time.Now(), rest: func(time.Duration) {}}
	p.quiet = func() {
		waitFor(t, "what was sent has come", func() bool {
			runtime.Gosched()
			for i, from := range p.sides {
				to := p.sides[1-i]
				if to.reads() && (from.underWay(to) != 0 || to.answersDue()) && len(e.ends()) == 0 {
					return false
				}
			}
			return true
		})
	}
	p.sides[client] = p.newPlayer(client, e.dial(), s.tls)
	p.early(s.early)
	conn, _ := e.accept()
	p.sides[relay] = p.newPlayer(relay, conn, "none")
	p.perform(step{who: relay, do: send, n: 1}) // behind it no session ticket is unread
	var ended [2]bool
	for _, at := range s.steps {
		p.perform(at)
		switch at.do {
		case finish, fin, broken, leave, reset:
			ended[at.who] = true
			p.heard(1 - at.who)
		}
		if at.do == broken || ended[client] && ended[relay] { // the pair ends, and both hear of it
			p.heard(client)
			p.heard(relay)
			waitFor(t, "the connection has ended", func() bool { return len(e.ends()) > 0 })
		}
	}
	for _, who := range []int{client, relay} {
		if side := p.sides[who]; !side.hasLeft() {
			side.gate.allow(all)
			p.perform(step{who: who, do: finish})
			p.heard(1 - who)
		}
	}
	for _, side := range p.sides {
		side.gate.allow(all)
	}
	waitFor(t, "the connection has ended", func() bool { return len(e.ends()) > 0 })
	waitFor(t, "both sides have heard of it", func() bool { return p.sides[client].streamEnded() && p.sides[relay].streamEnded() })
	r := p.result(e.testEdge)
	// crypto/tls leaves its goodbye out while a write has not returned, though its
	// bytes have come: to one who has broken the stream off it makes no difference.
	if how := &r.sides[client].stream.how; *how == "FIN" && slices.ContainsFunc(s.steps, func(at step) bool { return at.do == broken }) {
		*how = "close_notify"
	}
	for i := range r.sides {
		r.sides[i].stream.at, r.sides[i].socket = 0, ending{}
	}
	return r
}

// heard waits until a side has heard of the other's end. A write must not come
// before: it would take the reset's error away from the read.
func (p *play) heard(who int) {
	side := p.sides[who]
	side.gate.allow(all)
	waitFor(p.t, "the other side has heard of the end", func() bool { return side.streamEnded() || side.hasLeft() })
}

func (s *player) hasLeft() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.left
}

// reads reports whether the side takes what comes.
func (s *player) reads() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gate.mu.Lock()
	defer s.gate.mu.Unlock()
	return !s.left && s.seen.stream.how == "" && s.gate.left == all
}

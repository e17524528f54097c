package proxy

import (
	"net"
	"sync"
	"time"
)

// watch holds the two readers of the stream engine to the limits of silence, by
// their sockets' read deadlines. Those are set rarely: one that is early merely
// looks again.
type watch struct {
	mu            sync.Mutex // guards all below, and that the deadlines fit it
	silence       silence
	client, relay reader
	relayOver     bool // the relay's stream was read to its end
}

// reader is one of the two.
type reader struct {
	conn  net.Conn
	armed time.Time // the read deadline that is set; zero: none
}

// begin starts the clocks; that of the first byte has run since ready.
func (w *watch) begin(t *times, client, relay net.Conn, ready time.Time) {
	w.silence = newSilence(t, ready, time.Now())
	w.client, w.relay = reader{conn: client}, reader{conn: relay}
}

func (w *watch) clientMoved() { w.moved(&w.silence.client) }
func (w *watch) relayMoved()  { w.moved(&w.silence.relay) }

func (w *watch) moved(s *speaker) {
	w.mu.Lock()
	s.moved = time.Now()
	w.mu.Unlock()
}

func (w *watch) clientSpoke() {
	w.mu.Lock()
	w.silence.clientSpoke(time.Now())
	w.mu.Unlock()
}

// clientEnded notes the end of the client's stream, and reports whether the
// relay's has ended too.
func (w *watch) clientEnded() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.silence.client.end(time.Now())
	if !w.silence.relay.ended {
		w.arm(&w.relay) // its reader may be waiting by the rule of before
	}
	return w.silence.relay.ended
}

// relayEnds notes that the relay's stream was read to its end, which the client is
// yet to be told, and reports whether the client's has ended.
func (w *watch) relayEnds() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.relayOver = true
	return w.silence.client.ended
}

// relayEnded is clientEnded for the relay's stream, once the client is told.
func (w *watch) relayEnded() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.silence.relay.end(time.Now())
	if !w.silence.client.ended {
		w.arm(&w.client)
	}
	return w.silence.client.ended
}

func (w *watch) clientHasEnded() bool { return w.is(&w.silence.client.ended) }
func (w *watch) relayHasEnded() bool  { return w.is(&w.relayOver) }

func (w *watch) is(so *bool) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return *so
}

// armClient sets the read deadline under which the client is waited for.
func (w *watch) armClient() { w.armReader(&w.client) }
func (w *watch) armRelay()  { w.armReader(&w.relay) }

func (w *watch) armReader(r *reader) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.arm(r)
}

// arm requires mu. A deadline that lies between the present and the limit stays.
func (w *watch) arm(r *reader) {
	at, _ := w.limit(r)
	if at.IsZero() && r.armed.IsZero() || !r.armed.After(at) && r.armed.After(time.Now()) {
		return
	}
	r.armed = at
	r.conn.SetReadDeadline(at)
}

// clientExpired returns why the wait for the client is over, or nothing if its
// deadline was early.
func (w *watch) clientExpired() Reason { return w.expired(&w.client) }
func (w *watch) relayExpired() Reason  { return w.expired(&w.relay) }

func (w *watch) expired(r *reader) Reason {
	w.mu.Lock()
	defer w.mu.Unlock()
	at, reason := w.limit(r)
	if at.IsZero() || time.Now().Before(at) {
		return ""
	}
	return reason
}

// limit requires mu.
func (w *watch) limit(r *reader) (time.Time, Reason) {
	if r == &w.client {
		return w.silence.clientLimit()
	}
	return w.silence.relayLimit()
}

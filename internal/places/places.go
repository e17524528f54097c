package places

import (
	"cmp"
	"context"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"
)

// firstWord is the age below which a silent connection keeps its place: a client
// connects and asks in two steps, and where many come at once the second may take
// its time. It halves with every Most of them that made way in a row, so that any
// number of silent ones holds a newcomer up for twice as long at most.
const firstWord = 20 * time.Millisecond

// Config says how many places there are, and for whom.
type Config struct {
	// Most is how many connections have a place at once, at least 1.
	Most int
	// Time is how long a connection may stay in all, whatever it does; 0: as long as
	// the server lets it.
	Time time.Duration
	// Kept, where there is one, tells the requests that one place is kept for: the
	// others are answered in the rest of the places at once, and beyond it with
	// status 503 and the text Full.
	Kept func(*http.Request) bool
	Full string
}

// Serve is srv.Serve on ln within the places of cfg. It sets the ConnContext of
// srv and wraps its Handler, so it is called once for a server.
func Serve(srv *http.Server, ln net.Listener, cfg Config) error {
	l := &listener{Listener: ln, cfg: cfg}
	l.changed.L = &l.mu
	srv.ConnContext = withConn
	srv.Handler = l.answering(srv.Handler)
	return srv.Serve(l)
}

// connKey is the key of a request's *conn in its context.
type connKey struct{}

func withConn(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, c)
}

// listener accepts those who have a place.
type listener struct {
	net.Listener
	cfg Config // static

	mu      sync.Mutex
	changed sync.Cond // one more may have to make way, or none has to any more
	// Guarded by mu.
	open   []*conn // the oldest first
	silent int     // those who made way without having asked, since somebody asked or found a free place
	common int     // those being answered that the kept place is not for
	closed bool
}

// Accept takes the next connection out of the backlog, and returns it once it has
// a place.
func (l *listener) Accept() (net.Conn, error) {
	accepted, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &conn{Conn: accepted, of: l}
	if !l.enter(c) {
		_ = accepted.Close()
		return nil, net.ErrClosed
	}
	return c, nil
}

// enter gives c a place, at the cost of another or when one is free; false: the
// listener is closed.
func (l *listener) enter(c *conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.open) < l.cfg.Most {
		l.silent = 0
	}
	for len(l.open) >= l.cfg.Most && !l.closed {
		loser, young := l.loser(time.Now())
		if loser == nil {
			l.await(young)
			continue
		}
		if loser.stage == asking {
			l.silent++
		}
		l.remove(loser)
		// A close waits for the read under way, which may wait for mu.
		l.mu.Unlock()
		_ = loser.Conn.Close() // its server notices and closes it too
		l.mu.Lock()
	}
	if l.closed {
		return false
	}
	l.open = append(l.open, c)
	c.entered, c.placed = time.Now(), true
	if l.cfg.Time > 0 {
		c.timer = time.AfterFunc(l.cfg.Time, func() { _ = c.Close() })
	}
	return true
}

// loser returns who has to make way: the oldest that may. Where nobody may, it
// returns after what time one does that is too young; 0: none is. The caller holds mu.
func (l *listener) loser(now time.Time) (loser *conn, young time.Duration) {
	patience := firstWord >> (l.silent / l.cfg.Most)
	for _, c := range l.open {
		if c.stage == answered {
			return c, 0
		}
		if c.stage != asking || !c.reading || unread(c.Conn) {
			continue
		}
		left := patience - now.Sub(c.entered)
		if left <= 0 {
			return c, 0
		}
		young = cmp.Or(young, left) // the oldest's is the shortest
	}
	return nil, young
}

// remove takes the place of c, if it has one. The caller holds mu.
func (l *listener) remove(c *conn) {
	c.placed = false
	l.open = slices.DeleteFunc(l.open, func(other *conn) bool { return other == c })
	c.giveCommon()
	if c.timer != nil {
		c.timer.Stop()
	}
	l.changed.Broadcast()
}

// await waits for a change, or for a time if that is not 0. The caller holds mu.
func (l *listener) await(most time.Duration) {
	if most > 0 {
		timer := time.AfterFunc(most, func() {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.changed.Broadcast()
		})
		defer timer.Stop()
	}
	l.changed.Wait()
}

func (l *listener) Close() error {
	l.mu.Lock()
	l.closed = true
	l.changed.Broadcast()
	l.mu.Unlock()
	return l.Listener.Close()
}

// answering has h answer those who have a place.
func (l *listener) answering(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := r.Context().Value(connKey{}).(*conn)
		placed, full := c.begin(l.cfg.Kept == nil || l.cfg.Kept(r))
		if !placed {
			// It asked in the moment that it had to make way: what changes something
			// must not be done for who will never hear of it.
			panic(http.ErrAbortHandler)
		}
		defer c.handled()
		if full {
			http.Error(w, l.cfg.Full, http.StatusServiceUnavailable)
			return
		}
		h.ServeHTTP(w, r)
	})
}

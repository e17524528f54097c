package places

import (
	"io"
	"net"
	"net/http"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"relayedge/internal/memconn"
)

// newListener returns a listener that nobody serves.
func newListener(cfg Config) *listener {
	l := &listener{cfg: cfg}
	l.changed.L = &l.mu
	return l
}

// in returns a connection that has a place of l, and its client.
func in(t *testing.T, l *listener) (*conn, *memconn.Conn) {
	t.Helper()
	client, server := memconn.Pipe(netip.MustParseAddrPort("127.0.0.1:1"), netip.MustParseAddrPort("127.0.0.1:2"))
	c := &conn{Conn: server, of: l}
	if !l.enter(c) {
		t.Fatal("no place")
	}
	t.Cleanup(func() { _, _ = client.Close(), c.Close() })
	return c, client
}

func TestLoser(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	client, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	spoken, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer spoken.Close()
	_, _ = io.WriteString(client, "xy")
	if _, err := io.ReadFull(spoken, make([]byte, 1)); err != nil { // the other byte has come too
		t.Fatal(err)
	}
	now := time.Now()
	at := func(age time.Duration, s stage, reading bool, c net.Conn) *conn {
		return &conn{Conn: c, entered: now.Add(-age), stage: s, reading: reading}
	}
	old := at(time.Hour, asking, true, nil)
	for _, row := range []struct {
		what   string
		open   []*conn
		silent int
		loser  int // -1: nobody
		young  time.Duration
	}{
		{"nobody", nil, 0, -1, 0},
		{"the oldest", []*conn{old, at(time.Minute, asking, true, nil)}, 0, 0, 0},
		{"not who has spoken and is not read", []*conn{at(time.Hour, asking, true, spoken), old}, 0, 1, 0},
		{"not who is being read", []*conn{at(time.Hour, asking, false, nil), old}, 0, 1, 0},
		{"not who is being answered", []*conn{at(time.Hour, answering, true, nil), at(time.Hour, sending, true, nil), old}, 0, 2, 0},
		{"who has an answer, at any age", []*conn{at(0, asking, true, nil), at(0, answered, false, nil), at(0, answered, true, spoken)}, 0, 1, 0},
		{"nobody yet", []*conn{at(5*time.Millisecond, asking, true, nil), at(0, asking, true, nil)}, 0, -1, firstWord - 5*time.Millisecond},
		{"at the age", []*conn{at(firstWord, asking, true, nil)}, 0, 0, 0},
		{"as many as there are places", []*conn{at(0, asking, true, nil)}, 4, -1, firstWord / 2},
		{"twice as many", []*conn{at(0, asking, true, nil)}, 8, -1, firstWord / 4},
		{"very many", []*conn{at(0, asking, true, nil)}, 1 << 30, 0, 0},
	} {
		l := newListener(Config{Most: 4})
		l.open, l.silent = row.open, row.silent
		loser, young := l.loser(now)
		if row.loser < 0 && loser != nil || row.loser >= 0 && loser != row.open[row.loser] || young != row.young {
			t.Errorf("%s: %+v, %v", row.what, loser, young)
		}
	}
}

// The row of the silent ends where one asks, or finds a free place.
func TestRowOfTheSilentEnds(t *testing.T) {
	l := newListener(Config{Most: 2})
	c, _ := in(t, l)
	l.silent = 10
	if placed, full := c.begin(true); !placed || full || l.silent != 0 {
		t.Errorf("one asks: %t, %t, %d", placed, full, l.silent)
	}
	l.silent = 10
	if in(t, l); l.silent != 0 {
		t.Errorf("a free place: %d", l.silent)
	}
}

// The server's watch for the client's end is no sign that an answer is out; a
// read of what is left of the request is, and is told to who waits.
func TestEndOfAnAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newListener(Config{Most: 1})
		c, client := in(t, l)
		c.begin(true)
		c.handled()
		_, _ = io.WriteString(client, "x")
		if _, err := c.Read(make([]byte, 1)); err != nil || c.stage != sending {
			t.Errorf("a watch: stage %d, %v", c.stage, err)
		}
		next := make(chan bool)
		go func() {
			other, server := memconn.Pipe(netip.MustParseAddrPort("127.0.0.1:1"), netip.MustParseAddrPort("127.0.0.1:2"))
			defer other.Close()
			next <- l.enter(&conn{Conn: server, of: l})
		}()
		synctest.Wait()
		start := time.Now()
		if _, err := c.Read(make([]byte, 2)); err == nil {
			t.Error("it did not make way")
		}
		if !<-next || time.Since(start) != 0 {
			t.Errorf("the next waited for %v", time.Since(start))
		}
	})
}

// Who has lost its place in the moment that it asked is not answered, and what it
// asked for is not done.
func TestLateRequestIsNotDone(t *testing.T) {
	l := newListener(Config{Most: 1})
	c, _ := in(t, l)
	_ = c.Close()
	done := false
	h := l.answering(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { done = true }))
	defer func() {
		if p := recover(); p != http.ErrAbortHandler || done {
			t.Errorf("%v, done: %t", p, done)
		}
	}()
	r, err := http.NewRequestWithContext(withConn(t.Context(), c), "POST", "/", nil)
	if err != nil {
		t.Fatal(err)
	}
	h.ServeHTTP(nil, r)
}

// closesUnlocked is a connection whose close, as that of a socket, waits for a read
// that may wait for the listener.
type closesUnlocked struct {
	net.Conn
	of     *listener
	locked bool
}

func (c *closesUnlocked) Close() error {
	if !c.of.mu.TryLock() {
		c.locked = true
		return nil
	}
	c.of.mu.Unlock()
	return nil
}

// Who makes way is closed while nobody is kept waiting for it.
func TestLoserIsClosedUnlocked(t *testing.T) {
	l := newListener(Config{Most: 1})
	old := &closesUnlocked{of: l}
	l.open = []*conn{{Conn: old, of: l, placed: true, stage: answered}}
	in(t, l)
	if old.locked {
		t.Error("the listener is locked while one is closed")
	}
}

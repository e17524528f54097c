package proxy

import (
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"

	"relayedge/internal/memconn"
)

// looking is a socket that looks, whenever it is asked for its address, whether
// newcomers would have to wait.
type looking struct {
	*memconn.Listener
	server *Server
	asked  int
	held   bool
}

func (l *looking) Addr() net.Addr {
	l.asked++
	if !l.server.mu.TryLock() {
		l.held = true
	} else {
		l.server.mu.Unlock()
	}
	return l.Listener.Addr()
}

// Nobody waits at the door while a policy is prepared, whose files may be on a
// disk that is slow.
func TestNewcomersDoNotWaitForWhatIsPrepared(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		e := newEdge(t, nil)
		synctest.Wait() // it serves
		socket := &looking{Listener: memconn.Listen(netip.MustParseAddrPort("192.0.2.9:1")), server: e.server}
		next, err := e.server.Prepare(e.changed(func(c *Config) {
			l := c.Listeners[0]
			l.Name, l.Socket = "looking", socket
			c.Listeners = append(c.Listeners, l)
		}))
		if err != nil {
			t.Fatal(err)
		}
		if socket.asked == 0 || socket.held {
			t.Errorf("asked %d times, with the lock held: %v", socket.asked, socket.held)
		}
		next.Apply()
	})
}

func TestClientCAFileThatCannotBeUsed(t *testing.T) {
	dir := t.TempDir()
	large := filepath.Join(dir, "large")
	if err := os.WriteFile(large, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(large, maxCAFileBytes+1); err != nil {
		t.Fatal(err)
	}
	for path, says := range map[string]string{
		dir:                        "is no regular file",
		os.DevNull:                 "is no regular file",
		large:                      "is larger than",
		filepath.Join(dir, "none"): "no such file",
	} {
		if _, _, err := readCAs(path); err == nil || !strings.Contains(err.Error(), says) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// What was removed is forgotten, whether or not anybody reads the metrics, and
// not before its last connection.
func TestRemovedListenersAreForgotten(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		e := newEdge(t, nil)
		plain := e.config.Listeners[0]
		var last held
		for i := range 20 {
			other := plain
			front := memconn.Listen(netip.AddrPortFrom(edgeAddr.Addr(), uint16(1000+i)))
			other.Name, other.Socket = "other", front
			e.reload(func(c *Config) { c.Listeners = []Listener{plain, other} })
			if i == 10 {
				last, _ = e.enter(front, netip.MustParseAddrPort("192.0.2.1:5"))
			}
			e.reload(func(c *Config) { c.Listeners = []Listener{plain} })
			synctest.Wait()
		}
		e.reload(func(*Config) {})
		if n := len(e.server.leaving); n != 1 {
			t.Errorf("%d removed listeners are held, want that with a connection", n)
		}
		last.close()
		synctest.Wait()
		e.reload(func(*Config) {})
		if n := len(e.server.leaving); n != 0 {
			t.Errorf("%d removed listeners are held after their last connection", n)
		}
	})
}

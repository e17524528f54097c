package places

import (
	"io"
	"net"
	"net/http"
	"testing"
	"time"
)

// overSockets runs f with a listener of each kind.
func overSockets(t *testing.T, f func(t *testing.T, ln net.Listener)) {
	for _, network := range []string{"tcp", "unix"} {
		t.Run(network, func(t *testing.T) {
			addr := "127.0.0.1:0"
			if network == "unix" {
				addr = t.TempDir() + "/s"
			}
			ln, err := net.Listen(network, addr)
			if err != nil {
				t.Fatal(err)
			}
			defer ln.Close()
			f(t, ln)
		})
	}
}

// calls connects to a listener, and says something.
func calls(t *testing.T, ln net.Listener, text string) net.Conn {
	t.Helper()
	c, err := net.Dial(ln.Addr().Network(), ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	_, _ = io.WriteString(c, text)
	return c
}

// servesTwo serves two at a time, answers at once and waits for ever, until it is ended.
func servesTwo(ln net.Listener) (end func()) {
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, "done") })}
	srv.SetKeepAlivesEnabled(false)
	served := make(chan error, 1)
	go func() { served <- Serve(srv, ln, Config{Most: 2}) }()
	return func() {
		_ = srv.Close()
		<-served
	}
}

// A request that came before the server has read it counts: of those who ask at
// once, far more than there are places, none is closed.
func TestWhoHasAskedIsAnswered(t *testing.T) {
	overSockets(t, func(t *testing.T, ln net.Listener) {
		var asked []net.Conn
		for range 64 {
			asked = append(asked, calls(t, ln, get("/now")))
		}
		defer servesTwo(ln)()
		for i, c := range asked {
			if got := status(c); got != 200 {
				t.Errorf("request %d: status %d", i, got)
			}
			_ = c.Close()
		}
	})
}

// The same over real sockets, by a server that waits for ever.
func TestSilenceOverSockets(t *testing.T) {
	overSockets(t, func(t *testing.T, ln net.Listener) {
		defer servesTwo(ln)()
		for _, sent := range []string{"", "GET", "GET /now HTTP/1.1\r\nHost: house\r\nContent-Length: 9\r\n\r\n"} {
			for range 10 {
				defer calls(t, ln, sent).Close()
			}
			c := calls(t, ln, get("/now"))
			if got := status(c); got != 200 {
				t.Errorf("behind ten times %q: status %d", sent, got)
			}
			_ = c.Close()
		}
	})
}

// What has come and is not read tells silence from a server that is late.
func TestUnread(t *testing.T) {
	overSockets(t, func(t *testing.T, ln net.Listener) {
		client := calls(t, ln, "")
		defer client.Close()
		c, err := ln.Accept()
		if err != nil {
			t.Fatal(err)
		}
		if unread(c) {
			t.Error("nothing was sent")
		}
		_, _ = io.WriteString(client, "xy")
		one := make([]byte, 1)
		if _, err := io.ReadFull(c, one); err != nil || !unread(c) { // it has come, since a part is read
			t.Errorf("a byte waits: %v", err)
		}
		if _, err := io.ReadFull(c, one); err != nil || unread(c) {
			t.Errorf("all is read: %v", err)
		}
		_ = client.Close()
		if _, err := c.Read(one); err != io.EOF || unread(c) {
			t.Errorf("the end is nothing to read: %v", err)
		}
		_ = c.Close()
		if unread(c) {
			t.Error("closed")
		}
	})
}

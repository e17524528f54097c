package hostport

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// inheriting has this process be its own successor for a test.
func inheriting(t *testing.T) {
	t.Helper()
	handed, err := Sockets()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, ln := range Rest() {
			ln.Close()
		}
		KeepFiles(false)
		Resume()
	})
	Inherit(handed)
}

// Who listens where the process before did gets its socket and its queue, and none of
// both takes the file of the other away.
func TestInherit(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	for _, bind := range []string{"127.0.0.1:0", "unix:" + path} {
		old, err := mustParse(t, bind).Listen()
		if err != nil {
			t.Fatal(err)
		}
		if !Pause(time.Minute, old) {
			t.Fatalf("%s: nobody accepts, and yet somebody does", bind)
		}
		client, err := net.Dial(old.Addr().Network(), old.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		inheriting(t)
		next, err := mustParse(t, bind).Listen()
		if err != nil {
			t.Fatal(err)
		}
		if next.Addr().String() != old.Addr().String() {
			t.Errorf("%s: listens on %v and not on %v", bind, next.Addr(), old.Addr())
		}
		KeepFiles(true)
		old.Close()
		KeepFiles(false)
		accepted := make(chan error, 1)
		go func() {
			conn, err := next.Accept()
			if err == nil {
				conn.Close()
			}
			accepted <- err
		}()
		select {
		case err := <-accepted:
			t.Errorf("%s: accepted in the pause: %v", bind, err)
		case <-time.After(20 * time.Millisecond):
		}
		Resume()
		if err := <-accepted; err != nil {
			t.Errorf("%s: what has waited: %v", bind, err)
		}
		if conn, err := net.Dial(next.Addr().Network(), next.Addr().String()); err != nil {
			t.Errorf("%s: a newcomer: %v", bind, err)
		} else {
			conn.Close()
		}
		next.Close()
	}
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the file is left: %v", err)
	}
}

// A socket that nobody asks for is told.
func TestRest(t *testing.T) {
	ln, err := mustParse(t, "127.0.0.1:0").Listen()
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	inheriting(t)
	rest := Rest()
	if len(rest) != 1 || rest[0].Addr().String() != ln.Addr().String() {
		t.Errorf("left are %v", rest)
	}
	for _, l := range rest {
		l.Close()
	}
}

// Pause waits for whoever deals with a connection, and Close ends a wait in it.
func TestPause(t *testing.T) {
	ln, err := mustParse(t, "127.0.0.1:0").Listen()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(Resume)
	got, deal, ended := make(chan struct{}), make(chan struct{}), make(chan error)
	var told []bool
	ln.(*Socket).OnPause(func(paused bool) { told = append(told, paused) })
	go func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				ended <- err
				return
			}
			got <- struct{}{}
			<-deal
			conn.Close()
		}
	}()
	client, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	<-got
	if Pause(10*time.Millisecond, ln) {
		t.Error("a connection is dealt with, and the pause has begun")
	}
	paused := make(chan bool)
	go func() { paused <- Pause(time.Minute, ln) }()
	close(deal)
	if !<-paused {
		t.Error("the pause does not begin")
	}
	Resume()
	Pause(time.Minute, ln)
	ln.Close()
	if err := <-ended; !errors.Is(err, net.ErrClosed) {
		t.Errorf("at the end: %v", err)
	}
	if len(told) != 3 || !told[0] || told[1] || !told[2] {
		t.Errorf("was told %v", told)
	}
}

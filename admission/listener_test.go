package admission

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"relayedge/internal/memconn"
)

var relayAddr = netip.MustParseAddrPort("[2001:db8::7]:7777")

func dial(t *testing.T, ln *memconn.Listener, from netip.Addr) *memconn.Conn {
	t.Helper()
	c, err := ln.Dial(t.Context(), netip.AddrPortFrom(from, 40000))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestListenerYieldsOnlyTheAdmitted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limits := wide()
		limits.MaxConnectionsPerIP = 1
		limits.Deny = prefixes("10.0.0.0/8")
		g := newGate(t, limits)
		below := memconn.Listen(relayAddr)
		var refused []Reason
		ln := NewListener(below, g, func(r Reason) { refused = append(refused, r) })
		defer ln.Close()

		refusedOnes := []*memconn.Conn{dial(t, below, netip.MustParseAddr("10.1.2.3")), dial(t, below, netip.MustParseAddr("::ffff:10.1.2.3"))}
		dial(t, below, v4)
		first, err := ln.Accept()
		if err != nil {
			t.Fatal(err)
		}
		if from := AddrOf(first.RemoteAddr()); from != v4 {
			t.Errorf("accepted from %v, want %v", from, v4)
		}
		refusedOnes = append(refusedOnes, dial(t, below, v4))
		dial(t, below, v6)
		second, err := ln.Accept()
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range refusedOnes {
			if n, err := c.Read(make([]byte, 1)); n != 0 || err != io.EOF {
				t.Errorf("a refused client reads %d bytes and %v, want the end", n, err)
			}
		}
		if len(refused) != 3 || refused[0] != Denied || refused[1] != Denied || refused[2] != PerIPCap {
			t.Errorf("refused for %v", refused)
		}
		wantHeld(t, g, time.Now(), 2, 2, 1)

		// A slot is free as soon as its connection is closed, and only once.
		for range 3 {
			first.Close()
			wantHeld(t, g, time.Now(), 1, 1, 1)
		}
		dial(t, below, v4)
		third, err := ln.Accept()
		if err != nil {
			t.Fatal(err)
		}
		ln.Close() // leaves the leases
		wantHeld(t, g, time.Now(), 2, 2, 1)
		second.Close()
		third.Close()
		wantHeld(t, g, time.Now(), 0, 0, 0)
		if _, err := ln.Accept(); !errors.Is(err, net.ErrClosed) {
			t.Errorf("Accept after Close: %v", err)
		}
		if ln.Addr().String() != relayAddr.String() {
			t.Errorf("Addr = %v", ln.Addr())
		}
	})
}

func TestListenerWithoutCallback(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limits := wide()
		limits.Deny = prefixes("192.0.2.0/24")
		below := memconn.Listen(relayAddr)
		ln := NewListener(below, newGate(t, limits), nil)
		defer ln.Close()
		dial(t, below, v4)
		dial(t, below, v6)
		c, err := ln.Accept()
		if err != nil || AddrOf(c.RemoteAddr()) != v6 {
			t.Fatalf("Accept = %v, %v", c, err)
		}
		c.Close()
	})
}

// scripted is a net.Listener that fails as it is told, and then accepts one
// connection or fails for good.
type scripted struct {
	net.Listener
	faults []error
	last   error
	closed sync.Once
	done   chan struct{}
}

func (s *scripted) Accept() (net.Conn, error) {
	select {
	case <-s.done:
		return nil, net.ErrClosed
	default:
	}
	if len(s.faults) > 0 {
		err := s.faults[0]
		s.faults = s.faults[1:]
		return nil, err
	}
	if s.last != nil {
		return nil, s.last
	}
	c, _ := memconn.Pipe(relayAddr, netip.MustParseAddrPort("192.0.2.1:1"))
	return c, nil
}

func (s *scripted) Close() error {
	s.closed.Do(func() { close(s.done) })
	return nil
}

// acceptError is an error as net reports it.
func acceptError(errno syscall.Errno) error {
	return &net.OpError{Op: "accept", Net: "tcp", Err: os.NewSyscallError("accept4", errno)}
}

func TestListenerOutlivesAcceptErrors(t *testing.T) {
	full := acceptError(syscall.EMFILE)
	ms := time.Millisecond
	final := errors.New("the listener is broken")
	tests := []struct {
		name   string
		faults []error
		last   error
		want   time.Duration
	}{
		{"none", nil, nil, 0},
		{"EMFILE", []error{acceptError(syscall.EMFILE)}, nil, 5 * ms},
		{"ENFILE", []error{acceptError(syscall.ENFILE)}, nil, 5 * ms},
		{"ENOBUFS", []error{acceptError(syscall.ENOBUFS)}, nil, 5 * ms},
		{"ENOMEM", []error{acceptError(syscall.ENOMEM)}, nil, 5 * ms},
		{"EPROTO", []error{acceptError(syscall.EPROTO)}, nil, 5 * ms},
		{"EPERM", []error{acceptError(syscall.EPERM)}, nil, 5 * ms},
		{"EOPNOTSUPP", []error{acceptError(syscall.EOPNOTSUPP)}, nil, 5 * ms},
		{"ENETDOWN", []error{acceptError(syscall.ENETDOWN)}, nil, 5 * ms},
		{"ENETUNREACH", []error{acceptError(syscall.ENETUNREACH)}, nil, 5 * ms},
		{"EHOSTDOWN", []error{acceptError(syscall.EHOSTDOWN)}, nil, 5 * ms},
		{"EHOSTUNREACH", []error{acceptError(syscall.EHOSTUNREACH)}, nil, 5 * ms},
		{"ECONNABORTED", []error{acceptError(syscall.ECONNABORTED), acceptError(syscall.ECONNABORTED)}, nil, 0},
		{"aborts between do not start over", []error{full, acceptError(syscall.ECONNABORTED), full}, nil, 15 * ms},
		{"doubled", []error{full, full, full}, nil, 35 * ms},
		{"up to a second", []error{full, full, full, full, full, full, full, full, full, full}, nil, 1275*ms + 2*time.Second},
		{"another error", []error{full}, final, 5 * ms},
		{"closed", nil, net.ErrClosed, 0},
		{"an errno that no pause mends", nil, acceptError(syscall.EBADF), 0},
		{"EFAULT", nil, acceptError(syscall.EFAULT), 0},
		{"ENOTSOCK", nil, acceptError(syscall.ENOTSOCK), 0},
		{"EINVAL", nil, acceptError(syscall.EINVAL), 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ln := NewListener(&scripted{faults: tt.faults, last: tt.last, done: make(chan struct{})}, newGate(t, wide()), nil)
				start := time.Now()
				c, err := ln.Accept()
				if !errors.Is(err, tt.last) || (c == nil) != (tt.last != nil) {
					t.Fatalf("Accept = %v, %v, want the error %v", c, err, tt.last)
				}
				if took := time.Since(start); took != tt.want {
					t.Errorf("it took %v, want %v", took, tt.want)
				}
			})
		})
	}
}

// A success ends the row of pauses, also where the gate refuses what came.
func TestAcceptBackoffStartsOver(t *testing.T) {
	var b AcceptBackoff
	full := acceptError(syscall.EMFILE)
	b.Retry(full)
	if pause, retry := b.Retry(full); pause != 10*time.Millisecond || !retry {
		t.Errorf("the second pause is %v, %v", pause, retry)
	}
	b.Reset()
	if pause, retry := b.Retry(full); pause != 5*time.Millisecond || !retry {
		t.Errorf("the pause after a success is %v, %v", pause, retry)
	}
	synctest.Test(t, func(t *testing.T) {
		limits := wide()
		limits.MaxConnections = 1
		g := newGate(t, limits)
		lease := mustAdmit(t, g, v4, time.Now())
		below := &scripted{faults: []error{full}, done: make(chan struct{})}
		ln := NewListener(below, g, func(Reason) {
			lease.Release() // the next one gets in
			below.faults = []error{full}
		})
		start := time.Now()
		if _, err := ln.Accept(); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(start); took != 10*time.Millisecond {
			t.Errorf("two faults around a refusal took %v, want 5ms each", took)
		}
	})
}

func TestCloseEndsThePause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		full := acceptError(syscall.EMFILE)
		ln := NewListener(&scripted{faults: []error{full, full, full, full, full, full, full, full}, done: make(chan struct{})}, newGate(t, wide()), nil)
		start := time.Now()
		time.AfterFunc(700*time.Millisecond, func() { ln.Close(); ln.Close() })
		if _, err := ln.Accept(); !errors.Is(err, net.ErrClosed) {
			t.Errorf("Accept = %v, want net.ErrClosed", err)
		}
		if took := time.Since(start); took != 700*time.Millisecond {
			t.Errorf("Accept ended after %v, want 700ms", took)
		}
	})
}

type namedAddr struct{ network, text string }

func (a namedAddr) Network() string { return a.network }
func (a namedAddr) String() string  { return a.text }

func TestAddrOf(t *testing.T) {
	tests := []struct {
		name string
		addr net.Addr
		want netip.Addr
	}{
		{"TCP", net.TCPAddrFromAddrPort(netip.AddrPortFrom(v6, 1)), v6},
		{"TCP, IPv4", &net.TCPAddr{IP: net.IPv4(192, 0, 2, 10), Port: 1}, netip.MustParseAddr("::ffff:192.0.2.10")},
		{"TCP, none", (*net.TCPAddr)(nil), nobody},
		{"unix", &net.UnixAddr{Net: "unix", Name: "192.0.2.10:1"}, nobody},
		{"nil", nil, nobody},
		{"a type of its own", namedAddr{"tcp", "192.0.2.10:1"}, v4},
		{"a type of its own, tcp6", namedAddr{"tcp6", "[2001:db8:1:2::1]:1"}, v6},
		{"a type of its own, no address", namedAddr{"tcp", "pipe"}, nobody},
		{"a type of its own, not TCP", namedAddr{"pipe", "192.0.2.10:1"}, nobody},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := AddrOf(tt.addr); got != tt.want {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}

// accepted returns both ends of a connection over loopback or a unix socket,
// the second as the Listener yields it.
func accepted(t *testing.T, g *Gate, network, address string) (client net.Conn, served *Conn) {
	t.Helper()
	below, err := net.Listen(network, address)
	if err != nil {
		t.Fatal(err)
	}
	ln := NewListener(below, g, nil)
	t.Cleanup(func() { ln.Close() })
	client, err = net.Dial(network, ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	c, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return client, c.(*Conn)
}

func TestConn(t *testing.T) {
	networks := []struct{ network, address string }{
		{"tcp", "127.0.0.1:0"},
		{"unix", filepath.Join(t.TempDir(), "relay")},
	}
	for _, n := range networks {
		t.Run(n.network, func(t *testing.T) {
			g := newGate(t, wide())
			client, served := accepted(t, g, n.network, n.address)
			if hosts := g.Stats(time.Now()).Hosts; (hosts == 1) != (n.network == "tcp") {
				t.Errorf("%d hosts", hosts)
			}
			if _, ok := served.NetConn().(syscall.Conn); !ok {
				t.Errorf("NetConn is a %T", served.NetConn())
			}
			raw, err := served.SyscallConn()
			if err != nil {
				t.Fatal(err)
			}
			if err := raw.Control(func(fd uintptr) {}); err != nil {
				t.Error(err)
			}
			io.WriteString(served, "the end")
			if err := served.CloseWrite(); err != nil {
				t.Fatal(err)
			}
			if b, err := io.ReadAll(client); string(b) != "the end" || err != nil {
				t.Errorf("the client reads %q, %v", b, err)
			}
			io.WriteString(client, "after it")
			b := make([]byte, 8)
			if _, err := io.ReadFull(served, b); string(b) != "after it" || err != nil {
				t.Errorf("after its half-close the relay reads %q, %v", b, err)
			}
			wantConnections := func(n int) {
				t.Helper()
				if got := g.Stats(time.Now()).Connections; got != n {
					t.Errorf("%d connections, want %d", got, n)
				}
			}
			wantConnections(1)
			other := mustAdmit(t, g, nobody, time.Now())
			var all sync.WaitGroup
			for range 8 {
				all.Go(func() { served.Close() })
			}
			all.Wait()
			wantConnections(1)
			other.Release()
			wantConnections(0)
		})
	}
}

// Whoever counts the bytes of a Conn by wrapping it sees them all: there is no
// ReadFrom or WriteTo that a copy would take around the wrapper.
func TestConnHasNoShortcut(t *testing.T) {
	if _, ok := any((*Conn)(nil)).(io.ReaderFrom); ok {
		t.Error("Conn has a ReadFrom")
	}
	if _, ok := any((*Conn)(nil)).(io.WriterTo); ok {
		t.Error("Conn has a WriteTo")
	}
	client, served := accepted(t, newGate(t, wide()), "tcp", "127.0.0.1:0")
	counted := &counting{Conn: served}
	if n, err := io.Copy(counted, bytes.NewReader(make([]byte, 1000))); n != 1000 || err != nil || counted.wrote != 1000 {
		t.Errorf("copied %d bytes, %v, counted %d", n, err, counted.wrote)
	}
	client.Close()
}

type counting struct {
	*Conn
	wrote int
}

func (c *counting) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	c.wrote += n
	return n, err
}

func TestConnOverWhatCannot(t *testing.T) {
	a, b := net.Pipe()
	defer b.Close()
	c := &Conn{Conn: a, lease: mustAdmit(t, newGate(t, wide()), nobody, time.Now())}
	if err := c.CloseWrite(); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("CloseWrite = %v", err)
	}
	if _, err := c.SyscallConn(); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("SyscallConn = %v", err)
	}
	c.Close()
}

// net/http serves on through refusals.
func TestListenerUnderHTTP(t *testing.T) {
	limits := wide()
	limits.MaxConnections = 1
	g := newGate(t, limits)
	below, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var refused sync.WaitGroup
	refused.Add(3)
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "relayed") })}
	var served sync.WaitGroup
	served.Go(func() { server.Serve(NewListener(below, g, func(Reason) { refused.Done() })) })
	defer served.Wait()
	defer server.Close()

	get := func() (string, error) {
		transport := &http.Transport{DisableKeepAlives: true}
		defer transport.CloseIdleConnections()
		resp, err := (&http.Client{Transport: transport}).Get("http://" + below.Addr().String())
		if err != nil {
			return "", err
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		return string(b), err
	}
	lease := mustAdmit(t, g, nobody, time.Now())
	for range 3 {
		if body, err := get(); err == nil {
			t.Errorf("a refused request is answered %q", body)
		}
	}
	refused.Wait()
	lease.Release()
	if body, err := get(); body != "relayed" || err != nil {
		t.Errorf("after the refusals: %q, %v", body, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := server.Shutdown(ctx); err != nil {
		t.Error(err)
	}
	if n := g.Stats(time.Now()).Connections; n != 0 {
		t.Errorf("%d connections after the shutdown", n)
	}
}

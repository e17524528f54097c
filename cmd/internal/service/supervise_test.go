package service

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"relayedge/internal/sdnotify"
	"relayedge/internal/telemetry"
)

// counted are families with the values given.
func counted(values map[string]float64) []telemetry.Family {
	family := func(name string, labels ...string) telemetry.Family {
		return telemetry.Family{Name: name, Read: func(emit func(string, float64)) {
			for _, l := range labels {
				emit(l, values[name+l])
			}
		}}
	}
	return []telemetry.Family{
		family("connections", "public", "local"), family("connections_total", ""), family("rejections_total", "per_ip_cap", "rate_limit", "descriptors"),
		{Name: "handshake_seconds", Kind: telemetry.Histogram, ReadHistogram: func() (map[float64]uint64, uint64, float64) { return nil, 0, 0 }},
	}
}

func TestStatus(t *testing.T) {
	values := map[string]float64{"connectionspublic": 3, "connectionslocal": 4, "connections_total": 100, "rejections_totalper_ip_cap": 5, "rejections_totaldescriptors": 1, "rejections_totalrate_limit": 50}
	var ready error
	v := &Vitals{Families: counted(values), Sockets: func() []net.Listener { return nil }, Ready: func() error { return ready }}
	if got, err := v.look(); err != nil || got != "serving: 7 connections open, 6 refused or ended by a limit" {
		t.Errorf("%q, %v", got, err)
	}
	ready = errors.New("no upstream takes connections")
	if got, err := v.look(); err != nil || !strings.HasSuffix(got, "; not ready: no upstream takes connections") {
		t.Errorf("%q, %v", got, err)
	}
	v.Families[0].Read = func(func(string, float64)) { panic("x") }
	if _, err := v.look(); err == nil || !strings.Contains(err.Error(), "a fault of the program: x") {
		t.Errorf("%v", err)
	}
}

// Clients that wait at two looks, with nobody taken or refused between them.
func TestClientsThatNobodyTakes(t *testing.T) {
	for network, address := range map[string]string{"tcp": "127.0.0.1:0", "unix": filepath.Join(t.TempDir(), "s")} {
		t.Run(network, func(t *testing.T) {
			ln, err := net.Listen(network, address)
			if err != nil {
				t.Fatal(err)
			}
			defer ln.Close()
			values := map[string]float64{}
			v := &Vitals{Families: counted(values), Sockets: func() []net.Listener { return []net.Listener{ln} }, Ready: func() error { return nil }}
			alive := func(when string, want bool) {
				t.Helper()
				if _, err := v.look(); (err == nil) != want {
					t.Errorf("%s: %v", when, err)
				}
			}
			alive("nobody there", true)
			alive("still nobody", true)
			conn, err := net.Dial(network, ln.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			soon(t, "a client waits", func() bool { return queued(ln) })
			alive("one has come", true)
			values["connections_total"]++
			alive("another was taken", true)
			values["rejections_totaldescriptors"]++
			alive("another was refused", true)
			if _, err := v.look(); err == nil || !strings.Contains(err.Error(), "nobody is taken at") {
				t.Errorf("nobody was taken: %v", err)
			}
			alive("still nobody was taken", false)
			taken, err := ln.Accept()
			if err != nil {
				t.Fatal(err)
			}
			defer taken.Close()
			alive("the client was taken", true)
			ln.Close()
			alive("closed", true)
		})
	}
}

// found is what a look of a test finds.
type found struct {
	mu     sync.Mutex
	status string
	err    error
	hangs  chan struct{} // until it is closed
}

func (f *found) set(status string, err error, hangs chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.status, f.err, f.hangs = status, err, hangs
}

func (f *found) look() (string, error) {
	f.mu.Lock()
	status, err, hangs := f.status, f.err, f.hangs
	f.mu.Unlock()
	if hangs != nil {
		<-hangs
	}
	return status, err
}

func TestPulse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		var mu sync.Mutex
		var said []string // since it was looked at
		say := func(what string) {
			mu.Lock()
			defer mu.Unlock()
			said = append(said, what)
		}
		f := &found{status: "a"}
		p := pulse{every: 10 * time.Second, look: f.look, alive: func() { say("alive") }, status: say, log: slog.New(slog.NewTextHandler(&log, nil))}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { p.run(ctx); close(ended) }()
		after := func(when string, d time.Duration, want ...string) {
			t.Helper()
			time.Sleep(d)
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			if !slices.Equal(said, want) {
				t.Errorf("%s: it says %q, want %q", when, said, want)
			}
			said = nil
		}
		after("a moment before the first look", 10*time.Second-time.Nanosecond)
		after("the first look", time.Nanosecond, "alive", "a")
		after("nothing changes", 30*time.Second, "alive", "alive", "alive")
		f.set("b", nil, nil)
		after("the status changes", 10*time.Second, "alive", "b")
		f.set("", errors.New("nobody is taken"), nil)
		after("a fault", 30*time.Second, "not alive: nobody is taken")
		f.set("b", nil, nil)
		after("it passes", 10*time.Second, "alive", "b")
		hangs := make(chan struct{})
		f.set("b", nil, hangs)
		after("a look hangs", 20*time.Second-time.Nanosecond)
		after("for long", time.Nanosecond, "not alive: its counters cannot be read")
		after("for very long", time.Hour)
		f.set("c", nil, nil)
		close(hangs)
		// What hung has found b, and the look that was due meanwhile c.
		after("it goes on", 0, "alive", "b", "alive", "c")
		hangs = make(chan struct{})
		f.set("d", nil, hangs)
		after("a look hangs at the end", 15*time.Second)
		cancel()
		<-ended
		close(hangs)
		if n := strings.Count(log.String(), "is not alive"); n != 2 {
			t.Errorf("%d lines for two faults:\n%s", n, log.String())
		}
	})
}

// The whole of it, with a manager that listens.
func TestSupervise(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "n")
	manager, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer manager.Close()
	t.Setenv("NOTIFY_SOCKET", socket)
	t.Setenv("WATCHDOG_USEC", "3000000")
	t.Setenv("WATCHDOG_PID", "")
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	v := &Vitals{Families: counted(map[string]float64{}), Sockets: func() []net.Listener { return nil }, Ready: func() error { return nil }}
	go func() {
		defer close(ended)
		Supervise(ctx, sdnotify.FromEnvironment(), v, slog.New(slog.DiscardHandler))
	}()
	manager.SetReadDeadline(time.Now().Add(time.Minute))
	for _, want := range []string{"WATCHDOG=1", "STATUS=serving: 0 connections open, 0 refused or ended by a limit", "WATCHDOG=1"} {
		b := make([]byte, 4096)
		n, err := manager.Read(b)
		if err != nil || string(b[:n]) != want {
			t.Fatalf("%q, %v, want %q", b[:n], err, want)
		}
	}
	cancel()
	<-ended
	t.Setenv("NOTIFY_SOCKET", "")
	Supervise(t.Context(), sdnotify.FromEnvironment(), v, slog.New(slog.DiscardHandler)) // returns
}

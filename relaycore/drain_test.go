package relaycore

import (
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"relayedge/internal/spread"
	"relayedge/relaycore/websocket"
	"relayedge/relaycore/wire"
)

// A busy client whose queue takes many seconds to reach it gets all of that, and
// 1001 behind it.
func TestDrainDeliversFirst(t *testing.T) {
	bubble(t, func(c *Config) { c.DrainSecs = 60; big(c) }, func(t *testing.T, w *world) {
		a, b := w.member(1), w.member(2)
		_, n := w.stuffed(a, b, 1226)
		// From here on b is read by hand.
		b.halt <- nil
		close(b.gate)
		b.gate = nil
		<-b.detached
		b.nc.SetReadDeadline(time.Time{})
		got, code, text := 0, websocket.Code(0), ""
		done := make(chan struct{})
		go func() {
			defer close(done)
			for taken := 0; ; {
				r, err := readFrame(b.read)
				if err != nil {
					return
				}
				switch r.op {
				case websocket.Close:
					code, text, _ = websocket.ParseClose(r.payload)
					b.nc.Close()
					return
				case websocket.Binary:
					f, err := wire.DecodeServer(r.payload)
					if err != nil {
						t.Error(err)
					}
					if m, ok := f.(wire.Message); ok {
						if m.ID != messageID(got) {
							t.Errorf("message %x came as number %d", m.ID, got)
						}
						got++
					}
				}
				if taken += len(r.payload); taken >= writeSize {
					taken = 0
					time.Sleep(lastWords * 3 / 4)
				}
			}
		}()
		start := time.Now()
		w.stop()
		<-done
		if got != n || code != websocket.CodeGoingAway || text != "drain" {
			t.Errorf("%d of %d messages came, and the close code %d %q", got, n, code, text)
		}
		if took := time.Since(start); took < 5*time.Second || took > 20*time.Second {
			t.Errorf("it took %v", took)
		}
	})
}

// A client that takes nothing of what is queued holds up nobody.
func TestDrainOfOneWhoTakesNothing(t *testing.T) {
	bubble(t, func(c *Config) { c.DrainSecs = 3600; big(c) }, func(t *testing.T, w *world) {
		a, b := w.member(1), w.member(2)
		w.stuffed(a, b, 1226)
		start := time.Now()
		w.stop()
		// The close, a second to take something, a second for the last words.
		if took := time.Since(start); took > 2*lastWords+2*spread.Step {
			t.Errorf("it took %v", took)
		}
	})
}

// What is no session yet has nothing to finish, and does not hold a drain up.
func TestDrainOfTheUnserved(t *testing.T) {
	for state, says := range map[string]string{
		"silent":                         "",
		"half a PROXY header":            string(header(t, "203.0.113.77:4711")[:10]),
		"a PROXY header":                 string(header(t, "203.0.113.77:4711")),
		"a PROXY header and half a head": string(header(t, "203.0.113.77:4711")) + upgradeRequest[:40],
	} {
		t.Run(state, func(t *testing.T) {
			bubble(t, func(c *Config) { c.DrainSecs = 3600; proxied(c) }, func(t *testing.T, w *world) {
				p := w.dial(frontEnd)
				p.write([]byte(says))
				synctest.Wait()
				start := time.Now()
				w.stop()
				if took := time.Since(start); took != 0 {
					t.Errorf("it took %v", took)
				}
				if got, err := io.ReadAll(p.nc); len(got) > 0 || err != nil {
					t.Errorf("it reads %q, %v", got, err)
				}
			})
		})
	}
}

// One line says that it drains, and another what was left, if anything was.
func TestDrainLines(t *testing.T) {
	for _, stay := range []bool{false, true} {
		bubble(t, func(c *Config) { c.DrainSecs = 1; proxied(c) }, func(t *testing.T, w *world) {
			const sessions = 10
			for range sessions {
				p := w.behind("")
				if stay { // its last words are as long as drain_secs, and begin later
					continue
				}
				go func() {
					p.end()
					p.nc.Close()
				}()
			}
			w.stop()
			left := map[bool]int{true: 1}[stay]
			for line, n := range map[string]int{
				fmt.Sprintf(`msg="draining the relay" sessions=%d drain_secs=1`, sessions): 1,
				`msg="drain_secs are over: cutting what is still open" connections=`:       left,
			} {
				if got := strings.Count(w.log.String(), line); got != n {
					t.Errorf("%s is there %d times: %s", line, got, w.log)
				}
			}
		})
	}
}

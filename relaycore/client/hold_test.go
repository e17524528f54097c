package client

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coder/websocket"

	"relayedge/internal/memconn"
	"relayedge/relaycore/wire"
)

// serveSessions serves a relay that welcomes its nth session and then does act;
// it returns how to reach it and a function that ends it.
func serveSessions(act func(n int, w http.ResponseWriter, c func() *websocket.Conn)) (Options, *[]time.Time, func()) {
	ln := memconn.Listen(netip.MustParseAddrPort("127.0.0.1:7777"))
	var came []time.Time
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		came = append(came, time.Now())
		act(len(came), w, func() *websocket.Conn {
			c, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: []string{wire.Subprotocol}})
			if err != nil {
				return nil
			}
			c.SetReadLimit(1000)
			c.Read(context.Background())
			c.Write(context.Background(), websocket.MessageBinary, wire.Welcome{Version: wire.Version, MaxMessageBytes: 1 << 20}.Append(nil))
			return c
		})
	})}
	served := make(chan error, 1)
	go func() { served <- server.Serve(ln) }()
	o := Options{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return ln.Dial(ctx, netip.MustParseAddrPort("192.0.2.1:1000"))
	}}
	return o, &came, func() { server.Close(); <-served }
}

// reads is what most callers do.
func reads(ctx context.Context, s *Session) error {
	for {
		if _, err := s.Receive(ctx); err != nil {
			return err
		}
	}
}

// A session that ends for a reason of the moment is followed by another, after
// waits that grow; one that ends for good is the last.
func TestHoldUntilFinal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o, came, stop := serveSessions(func(n int, w http.ResponseWriter, accept func() *websocket.Conn) {
			switch n {
			case 1:
				accept().Close(websocket.StatusGoingAway, "drain")
			case 2:
				accept().CloseNow()
			case 3:
				w.Header().Set("Retry-After", "30")
				w.WriteHeader(503)
			case 4:
				accept().Close(websocket.StatusPolicyViolation, "auth_rate")
			default:
				accept().Close(4001, "")
			}
		})
		defer stop()
		err := Hold(t.Context(), "ws://relay.example.org/relay", o, reads)
		if websocket.CloseStatus(err) != 4001 || len(*came) != 5 {
			t.Fatalf("after %d sessions: %v", len(*came), err)
		}
		for i, row := range []struct{ least, most time.Duration }{
			{time.Second, 1500 * time.Millisecond}, {2 * time.Second, 3 * time.Second},
			{30 * time.Second, 38 * time.Second}, {authPause, 16 * time.Second},
		} {
			if wait := (*came)[i+1].Sub((*came)[i]); wait < row.least || wait > row.most {
				t.Errorf("the wait after session %d was %v", i+1, wait)
			}
		}
	})
}

// A message that is too long closes the session with 1009, and sending it again
// would again: the one that sends in a loop learns it, although it never reads.
func TestHoldDoesNotRepeatOversize(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o, came, stop := serveSessions(func(_ int, _ http.ResponseWriter, accept func() *websocket.Conn) {
			c := accept()
			c.Read(context.Background()) // says 1009
			time.Sleep(2 * time.Second)
			c.CloseNow()
		})
		defer stop()
		err := Hold(t.Context(), "ws://relay.example.org/relay", o, func(ctx context.Context, s *Session) error {
			for {
				if _, err := s.Send(ctx, 1, make([]byte, 2000)); err != nil {
					return err
				}
				time.Sleep(time.Second)
			}
		})
		if websocket.CloseStatus(err) != websocket.StatusMessageTooBig || len(*came) != 1 {
			t.Fatalf("after %d sessions: %v", len(*came), err)
		}
	})
}

// What use says of its own ends it, and so does its context, in a wait at once.
func TestHoldEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o, came, stop := serveSessions(func(_ int, _ http.ResponseWriter, accept func() *websocket.Conn) {
			c := accept()
			c.Read(context.Background())
			c.CloseNow()
		})
		defer stop()
		own := errors.New("enough")
		for _, want := range []error{nil, own} {
			*came = nil
			err := Hold(t.Context(), "ws://relay.example.org/relay", o, func(context.Context, *Session) error { return want })
			if err != want || len(*came) != 1 {
				t.Errorf("after %d sessions: %v", len(*came), err)
			}
		}
	})
	synctest.Test(t, func(t *testing.T) {
		refused := errors.New("connection refused")
		dials := 0
		o := Options{DialContext: func(context.Context, string, string) (net.Conn, error) { dials++; return nil, refused }}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		began := time.Now()
		err := Hold(ctx, "ws://relay.example.org/relay", o, reads)
		if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, refused) || time.Since(began) != 10*time.Minute {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
		// 63 to 94.5 s for the first six waits, then 40 to 60 s each.
		if dials < 15 || dials > 20 {
			t.Errorf("%d attempts in ten minutes", dials)
		}
	})
}

// A session that lasted was no failure, so the wait after it is short again.
func TestHoldForgets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o, came, stop := serveSessions(func(n int, _ http.ResponseWriter, accept func() *websocket.Conn) {
			c := accept()
			if n == 6 {
				time.Sleep(settled)
			}
			if n == 8 {
				c.Close(websocket.StatusNormalClosure, "")
				return
			}
			c.CloseNow()
		})
		defer stop()
		err := Hold(t.Context(), "ws://relay.example.org/relay", o, reads)
		if websocket.CloseStatus(err) != websocket.StatusNormalClosure {
			t.Fatal(err)
		}
		if before, after := (*came)[5].Sub((*came)[4]), (*came)[6].Sub((*came)[5])-settled; before < 10*time.Second || after > 2*time.Second {
			t.Errorf("it waited %v, and %v after a session that lasted", before, after)
		}
	})
}

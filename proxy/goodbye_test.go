package proxy

import (
	"crypto/tls"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"relayedge/internal/memconn"
	"relayedge/internal/socket"
)

// A client that has ended its stream, and reads slowly, gets the relay's answer
// and close_notify behind it: with a FIN alone it could not tell a whole answer
// from a cut one.
func TestSlowReaderIsToldTheEnd(t *testing.T) {
	// Which length leaves no room for the goodbye depends on how its records are cut.
	for n := memconn.BufferSize - 1600; n < memconn.BufferSize; n += 16 {
		inBubble(t, func(t *testing.T) {
			e := newEdge(t, terminating)
			r := rekeyingClient(e)
			relay, _, _ := e.accept()
			mustWrite(t, r.raw, r.record([]byte{1, 0}, 21)) // close_notify
			wantEOF(t, relay)
			go func() {
				relay.Write(make([]byte, n))
				relay.CloseWrite()
			}()
			synctest.Wait()
			got := 0
			for buf := make([]byte, 16384); ; time.Sleep(time.Second) {
				m, err := r.Read(buf)
				if got += m; err == io.EOF && got == n {
					break
				}
				if err != nil {
					t.Fatalf("after %d of %d bytes: %v", got, n, err)
				}
			}
			e.wantEnd(ClientClosed)
			r.raw.Close()
			relay.Close()
		})
	}
}

// A client with a certificate whose relay cannot be reached sees TLS end well,
// behind its session tickets, as it does without one.
func TestGoodbyeBehindTickets(t *testing.T) {
	ca, cert := clientCertificate(t, "alice")
	inBubble(t, func(t *testing.T) {
		e := newEdge(t, func(c *edgeConfig) { terminating(c); c.listener.ClientCAFile = ca })
		e.relay.Close()
		c := tls.Client(e.dial(aliceAddr), &tls.Config{InsecureSkipVerify: true, Certificates: []tls.Certificate{cert}, ServerName: "relay.example.org", ClientSessionCache: tls.NewLRUClientSessionCache(1)})
		if err := c.Handshake(); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Read(make([]byte, 1)); err != io.EOF {
			t.Errorf("the client reads %v", err)
		}
		c.Close()
		synctest.Wait()
	})
}

// lateWrites returns from a write some time after the peer has what was written. It
// is no synthetic time: crypto/tls holds a mutex meanwhile, and no bubble waits for one.
type lateWrites struct{ net.Conn }

func (c lateWrites) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	time.Sleep(50 * time.Millisecond)
	return n, err
}

// Whose end was heard first says how a pair ends, also where the other answers it
// before it has been passed on whole.
func TestGoodbyeThatIsAnsweredAtOnce(t *testing.T) {
	closeWrite := func(c io.Writer) { c.(interface{ CloseWrite() error }).CloseWrite() }
	for _, row := range []struct {
		name        string
		clientFirst bool
		ends        func(relay *memconn.Conn)
		answer      func(client io.Writer)
		want        Reason
	}{
		{"the relay ends first", false, func(relay *memconn.Conn) { relay.CloseWrite() }, closeWrite, UpstreamClosed},
		{"the client ends first", true, func(relay *memconn.Conn) { relay.CloseWrite() }, func(io.Writer) {}, ClientClosed},
		{"the relay has left, and the client goes on", false, func(relay *memconn.Conn) { relay.Close() }, func(client io.Writer) { client.Write([]byte("one more")) }, UpstreamClosed},
	} {
		t.Run(engineMark+"stream/"+row.name, func(t *testing.T) {
			e := newEdge(t, func(c *edgeConfig) {
				terminating(c)
				c.carry = func(s *session, _ func(*session)) {
					s.wire.Socket = socket.New(lateWrites{s.conn}, buffers)
					serveStream(s)
				}
			})
			client, raw, relay := e.tlsPair(nil)
			defer raw.Close()
			defer relay.Close()
			if row.clientFirst {
				closeWrite(client)
				wantEOF(t, relay)
			}
			row.ends(relay)
			if _, err := client.Read(make([]byte, 1)); err != io.EOF {
				t.Errorf("the client reads %v", err)
			}
			row.answer(client)
			waitFor(t, "it has ended", func() bool { return len(e.ends()) > 0 })
			if got := e.ends(); len(got) != 1 || got[row.want] != 1 {
				t.Errorf("ended: %v, want one %s", got, row.want)
			}
		})
	}
}

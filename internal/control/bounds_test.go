package control

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"relayedge/internal/memconn"
)

// bubble serves answers in synthetic time on connections in memory.
func bubble(t *testing.T, answers Answers, f func(t *testing.T, dial func() net.Conn)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ln := memconn.Listen(netip.MustParseAddrPort("127.0.0.1:1"))
		ctx, cancel := context.WithCancel(t.Context())
		served := make(chan error, 1)
		go func() { served <- Serve(ctx, ln, answers, quiet) }()
		f(t, func() net.Conn {
			conn, err := ln.Dial(t.Context(), netip.MustParseAddrPort("127.0.0.1:2"))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { conn.Close() })
			return conn
		})
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
}

const request = "POST /do HTTP/1.1\r\nHost: control\r\n\r\n"

// status reads a response's status, or 0 where the connection ended without.
func status(conn net.Conn) int {
	r, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return 0
	}
	io.Copy(io.Discard, r.Body)
	return r.StatusCode
}

func done(context.Context) (any, error) { return "done", nil }

// A request that does not come to its end is not waited for; one that takes its
// time to be answered is.
func TestTimes(t *testing.T) {
	slow := func(context.Context) (any, error) {
		time.Sleep(10 * readTime)
		return "done", nil
	}
	bubble(t, Answers{"POST /do": slow}, func(t *testing.T, dial func() net.Conn) {
		for _, part := range []string{"", "POST /do HT", request[:len(request)-2]} {
			conn := dial()
			io.WriteString(conn, part)
			start := time.Now()
			if got := status(conn); got == 200 || time.Since(start) != readTime {
				t.Errorf("%q: status %d after %v", part, got, time.Since(start))
			}
		}
		conn := dial()
		io.WriteString(conn, request)
		start := time.Now()
		if got := status(conn); got != 200 || time.Since(start) != 10*readTime {
			t.Errorf("a slow answer: status %d after %v", got, time.Since(start))
		}
	})
}

func TestSizes(t *testing.T) {
	bubble(t, Answers{"POST /do": done}, func(t *testing.T, dial func() net.Conn) {
		conn := dial()
		go io.WriteString(conn, "POST /do HTTP/1.1\r\nHost: control\r\nX: "+strings.Repeat("x", 4*maxHeaderBytes)+"\r\n\r\n")
		if got := status(conn); got != http.StatusRequestHeaderFieldsTooLarge {
			t.Errorf("a large header: status %d", got)
		}
		// A body is not read, and one that goes on does not keep its place.
		conn = dial()
		fmt.Fprintf(conn, "POST /do HTTP/1.1\r\nHost: control\r\nContent-Length: %d\r\n\r\n", 1<<30)
		if got := status(conn); got != 200 {
			t.Errorf("a large body: status %d", got)
		}
	})
}

// Who has asked nothing makes way for who asks: in a moment if many have just
// come, at once if they have been there for longer.
func TestSilenceHoldsNobodyUp(t *testing.T) {
	for _, part := range []string{"", "P", request[:len(request)-1]} {
		bubble(t, Answers{"POST /do": done}, func(t *testing.T, dial func() net.Conn) {
			for range 60 {
				io.WriteString(dial(), part)
			}
			for range 3 {
				conn := dial()
				io.WriteString(conn, request)
				start := time.Now()
				if got := status(conn); got != 200 || time.Since(start) > 100*time.Millisecond {
					t.Errorf("after 60 times %q: status %d after %v", part, got, time.Since(start))
				}
			}
			for range maxConnections {
				io.WriteString(dial(), part)
			}
			time.Sleep(time.Second)
			for range 2 * maxConnections {
				conn := dial()
				io.WriteString(conn, request)
				start := time.Now()
				if got := status(conn); got != 200 || time.Since(start) != 0 {
					t.Errorf("beside %q: status %d after %v", part, got, time.Since(start))
				}
			}
		})
	}
}

// Who comes while all are being answered waits for the first of them.
func TestAnswersAreNotEnded(t *testing.T) {
	const takes = time.Minute
	slow := func(context.Context) (any, error) {
		time.Sleep(takes)
		return "done", nil
	}
	bubble(t, Answers{"POST /do": done, "POST /slow": slow}, func(t *testing.T, dial func() net.Conn) {
		start := time.Now()
		var busy []net.Conn
		for range maxConnections {
			conn := dial()
			io.WriteString(conn, strings.Replace(request, "/do", "/slow", 1))
			busy = append(busy, conn)
			synctest.Wait()
		}
		time.Sleep(takes / 2)
		conn := dial()
		io.WriteString(conn, request)
		if got := status(conn); got != 200 || time.Since(start) != takes {
			t.Errorf("status %d after %v, want 200 after %v", got, time.Since(start), takes)
		}
		for _, conn := range busy {
			if got := status(conn); got != 200 || time.Since(start) != takes {
				t.Errorf("who was being answered: status %d after %v", got, time.Since(start))
			}
		}
	})
}

// What is being answered at the end is answered, within endTime.
func TestEnd(t *testing.T) {
	for _, row := range []struct {
		takes time.Duration
		want  int
	}{{endTime - time.Nanosecond, 200}, {2 * endTime, 0}} {
		synctest.Test(t, func(t *testing.T) {
			ln := memconn.Listen(netip.MustParseAddrPort("127.0.0.1:1"))
			ctx, cancel := context.WithCancel(t.Context())
			served := make(chan error, 1)
			asked := make(chan struct{})
			go func() {
				served <- Serve(ctx, ln, Answers{"POST /do": func(context.Context) (any, error) {
					close(asked)
					time.Sleep(row.takes)
					return "done", nil
				}}, quiet)
			}()
			conn, err := ln.Dial(t.Context(), netip.MustParseAddrPort("127.0.0.1:2"))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			io.WriteString(conn, request)
			<-asked
			start := time.Now()
			cancel()
			if got := status(conn); got != row.want {
				t.Errorf("takes %v: status %d", row.takes, got)
			}
			if err := <-served; err != nil || time.Since(start) > endTime+time.Second {
				t.Errorf("takes %v: ended after %v, %v", row.takes, time.Since(start), err)
			}
			synctest.Wait()
			time.Sleep(row.takes)
		})
	}
}

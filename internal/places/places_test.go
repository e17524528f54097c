package places

import (
	"bufio"
	"io"
	"log"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"relayedge/internal/memconn"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// house is a server of places in a bubble. It answers /now at once, /held once
// release is closed, and /large with more than a connection takes unread.
type house struct {
	t       *testing.T
	ln      *memconn.Listener
	srv     *http.Server
	served  chan error
	release chan struct{}

	mu sync.Mutex
	// Guarded by mu.
	most int            // answered at once, ever
	held map[string]int // being answered, by path
}

const large = 4 * memconn.BufferSize

// silence is how long the server waits for a request.
const silence = 5 * time.Second

func inHouse(t *testing.T, cfg Config, f func(t *testing.T, h *house)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		h := &house{
			t: t, ln: memconn.Listen(netip.MustParseAddrPort("127.0.0.1:80")),
			served: make(chan error, 1), release: make(chan struct{}), held: make(map[string]int),
		}
		h.srv = &http.Server{Handler: h, ReadTimeout: silence, ErrorLog: log.New(io.Discard, "", 0)}
		h.srv.SetKeepAlivesEnabled(false)
		go func() { h.served <- Serve(h.srv, h.ln, cfg) }()
		f(t, h)
		_ = h.srv.Close()
		if err := <-h.served; err != http.ErrServerClosed {
			t.Errorf("Serve: %v", err)
		}
		time.Sleep(time.Second) // net/http lets an answer travel before it closes on an unread request
	})
}

func (h *house) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h.mu.Lock()
	h.held[r.URL.Path]++
	sum := 0
	for _, n := range h.held {
		sum += n
	}
	h.most = max(h.most, sum)
	h.mu.Unlock()
	defer func() {
		h.mu.Lock()
		h.held[r.URL.Path]--
		h.mu.Unlock()
	}()
	switch r.URL.Path {
	case "/held":
		<-h.release
	case "/large":
		_, _ = io.WriteString(w, strings.Repeat("x", large))
		return
	}
	_, _ = io.WriteString(w, "done")
}

// say connects and sends, and lets the server come to rest.
func (h *house) say(text string) *memconn.Conn {
	h.t.Helper()
	c, err := h.ln.Dial(h.t.Context(), netip.MustParseAddrPort("127.0.0.1:0"))
	if err != nil {
		h.t.Fatal(err)
	}
	_, _ = io.WriteString(c, text)
	synctest.Wait()
	return c
}

func get(path string) string { return "GET " + path + " HTTP/1.1\r\nHost: house\r\n\r\n" }

// status reads an answer, and returns its status where it came whole, else 0.
func status(c net.Conn) int {
	res, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return 0
	}
	if _, err := io.Copy(io.Discard, res.Body); err != nil {
		return 0
	}
	_ = c.Close()
	return res.StatusCode
}

// want is that c is answered with a status, exactly after d.
func (h *house) want(what string, c net.Conn, code int, d time.Duration) {
	h.t.Helper()
	start := time.Now()
	if got, took := status(c), time.Since(start); got != code || took != d {
		h.t.Errorf("%s: status %d after %v, want %d after %v", what, got, took, code, d)
	}
	synctest.Wait() // for the server's end of it
}

// wantOpen is that the server has closed c, or has not.
func (h *house) wantOpen(what string, c net.Conn, open bool) {
	h.t.Helper()
	synctest.Wait()
	_ = c.SetReadDeadline(time.Now().Add(time.Nanosecond))
	_, err := io.Copy(io.Discard, c)
	if timeout, ok := err.(net.Error); open != (ok && timeout.Timeout()) {
		h.t.Errorf("%s: open is not %t: %v", what, open, err)
	}
	_ = c.SetReadDeadline(time.Time{})
}

// Who has no request of its own there makes way at once, whatever else it sent.
func TestWhoAsksNothingMakesWay(t *testing.T) {
	whole := get("/now")
	for _, row := range []struct{ what, sent string }{
		{"silence", ""},
		{"a byte", "G"},
		{"a line", whole[:strings.Index(whole, "\n")+1]},
		{"all but the last byte", whole[:len(whole)-1]},
		{"a request that is none", "\r\n\r\n\r\n"},
		{"an answer, and a body that does not come", "GET /now HTTP/1.1\r\nHost: house\r\nContent-Length: 9\r\n\r\n"},
		{"an answer, and a body that breaks off", "POST /now HTTP/1.1\r\nHost: house\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nx"},
		{"an answer, and a body without end", "POST /now HTTP/1.1\r\nHost: house\r\nContent-Length: 1000000\r\n\r\n" + strings.Repeat("x", 5000)},
	} {
		inHouse(t, Config{Most: 3}, func(t *testing.T, h *house) {
			for range 3 {
				h.say(row.sent)
			}
			time.Sleep(firstWord)
			for range 10 {
				h.want(row.what, h.say(whole), 200, 0)
			}
		})
	}
}

// However many are silent, and however new they are, a newcomer is held up by
// the first moments of a few of them.
func TestManyWhoAskNothing(t *testing.T) {
	for _, many := range []int{8, 9, 100, 4096} {
		inHouse(t, Config{Most: 8}, func(t *testing.T, h *house) {
			var silent []net.Conn
			for range many {
				c, err := h.ln.Dial(t.Context(), netip.MustParseAddrPort("127.0.0.1:0"))
				if err != nil {
					t.Fatal(err)
				}
				silent = append(silent, c)
			}
			start := time.Now()
			got := status(h.say(get("/now")))
			if took := time.Since(start); got != 200 || took > 2*firstWord {
				t.Errorf("%d silent: status %d after %v, want 200 within %v", many, got, took, 2*firstWord)
			}
			if many <= 100 { // of more, some make way as soon as they are read
				h.wantOpen("the last", silent[len(silent)-1], true)
			}
			h.wantOpen("the first", silent[0], many < 8)
			// Whoever comes next is not taken for one of them.
			time.Sleep(silence)
			for range 8 {
				h.say("")
			}
			h.want("after them", h.say(get("/now")), 200, firstWord)
		})
	}
}

// The oldest makes way first, and no more than have to.
func TestOldestMakesWay(t *testing.T) {
	inHouse(t, Config{Most: 3}, func(t *testing.T, h *house) {
		first, held, second := h.say("GET"), h.say(get("/held")), h.say("")
		time.Sleep(firstWord)
		h.want("the fourth", h.say(get("/now")), 200, 0)
		h.wantOpen("the first", first, false)
		h.wantOpen("the second", second, true)
		time.Sleep(firstWord)
		fifth := h.say("")
		h.wantOpen("the second, with a place free", second, true)
		h.want("the sixth", h.say(get("/now")), 200, 0)
		h.wantOpen("the second", second, false)
		h.wantOpen("the fifth", fifth, true)
		close(h.release)
		h.want("who was being answered", held, 200, 0)
	})
}

// An answer that is under way is not ended, in the handler or behind it; who comes
// meanwhile waits for the first end.
func TestAnswerIsNotEnded(t *testing.T) {
	for _, path := range []string{"/held", "/large"} {
		inHouse(t, Config{Most: 2}, func(t *testing.T, h *house) {
			busy := []net.Conn{h.say(get(path)), h.say(get(path))}
			time.Sleep(10 * firstWord)
			newcomers := []net.Conn{h.say(get("/now")), h.say(get("/now"))}
			h.wantOpen("a newcomer", newcomers[0], true)
			close(h.release)
			for _, c := range busy {
				h.want(path, c, 200, 0)
			}
			for _, c := range newcomers {
				h.want("a newcomer", c, 200, 0)
			}
			if h.most > 2 {
				t.Errorf("%d are answered at once", h.most)
			}
		})
	}
}

// Who has only connected has a moment to ask.
func TestYoungKeepsItsPlace(t *testing.T) {
	inHouse(t, Config{Most: 1}, func(t *testing.T, h *house) {
		young := h.say("")
		start := time.Now()
		newcomer := h.say(get("/now"))
		time.Sleep(firstWord - time.Nanosecond)
		h.wantOpen("who is young", young, true) // takes the nanosecond
		h.want("the newcomer", newcomer, 200, 0)
		if took := time.Since(start); took != firstWord {
			t.Errorf("answered after %v, want %v", took, firstWord)
		}
		h.wantOpen("who was young", young, false)
	})
}

// Of all places one is kept, whoever holds the others, and whoever is silent there.
func TestKept(t *testing.T) {
	kept := Config{Most: 3, Kept: func(r *http.Request) bool { return r.URL.Path == "/now" }, Full: "full"}
	for _, path := range []string{"/held", "/large"} {
		inHouse(t, kept, func(t *testing.T, h *house) {
			busy := []net.Conn{h.say(get(path)), h.say(get(path))}
			for range 3 {
				h.say("")
				time.Sleep(firstWord)
				h.want("a third "+path, h.say(get(path)), 503, 0)
				h.want("what is kept", h.say(get("/now")), 200, 0)
			}
			// Its place is had again once an answer is out.
			close(h.release)
			h.want(path, busy[0], 200, 0)
			h.want("a third with two", h.say(get("/large")), 200, 0)
			h.want(path, busy[1], 200, 0)
		})
	}
	t.Run("who is silent takes none of them", func(t *testing.T) {
		const lingers = "POST /other HTTP/1.1\r\nHost: house\r\nContent-Length: 9\r\n\r\n"
		inHouse(t, kept, func(t *testing.T, h *house) {
			h.say(lingers)
			h.say(lingers)
			h.want("another beside two answers", h.say(get("/other")), 200, 0)
			h.say("")
			h.say(lingers)
			h.say(lingers)
			h.want("another", h.say(get("/other")), 200, 0)
		})
	})
}

// An end by time gives the place back though the handler goes on.
func TestTime(t *testing.T) {
	const all = 30 * time.Second
	inHouse(t, Config{Most: 1, Time: all}, func(t *testing.T, h *house) {
		h.say(get("/held"))
		newcomer := h.say(get("/now"))
		h.want("a newcomer", newcomer, 200, all)
		close(h.release)
	})
	// And the place among those that are not kept, too.
	none := func(*http.Request) bool { return false }
	inHouse(t, Config{Most: 2, Time: all, Kept: none}, func(t *testing.T, h *house) {
		h.say(get("/held"))
		h.want("before", h.say(get("/now")), 503, 0)
		time.Sleep(all)
		synctest.Wait()
		h.want("after", h.say(get("/now")), 200, 0)
		close(h.release)
	})
}

// The end closes whoever waits for a place.
func TestEndWhileOneWaits(t *testing.T) {
	inHouse(t, Config{Most: 1}, func(t *testing.T, h *house) {
		h.say(get("/held"))
		waiting := h.say(get("/now"))
		_ = h.srv.Close()
		h.wantOpen("who waits", waiting, false)
		close(h.release)
	})
}

// Every end gives its place back, once.
func TestEveryEndGivesItsPlaceBack(t *testing.T) {
	inHouse(t, Config{Most: 3}, func(t *testing.T, h *house) {
		for range 4 {
			for i := range 6 {
				c := h.say("")
				switch i % 3 {
				case 0:
					c.Reset()
				case 1:
					_ = c.Close()
				case 2:
					_ = c.CloseWrite()
				}
			}
			time.Sleep(silence)
		}
		held := []net.Conn{h.say(get("/held")), h.say(get("/held")), h.say(get("/held"))}
		fourth := h.say(get("/held"))
		if h.held["/held"] != 3 {
			t.Errorf("%d are answered at once, want 3", h.held["/held"])
		}
		close(h.release)
		for _, c := range append(held, fourth) {
			h.want("held", c, 200, 0)
		}
	})
}

package relaycore

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"relayedge/admission"
	"relayedge/admission/httpguard"
	"relayedge/relaycore/wire"
)

// surfer is a client of the HTTP API at an address, with connections of its own.
type surfer struct {
	w     *world
	http  *http.Client
	dials int

	credential string
}

func (w *world) surf(from string) *surfer {
	s := &surfer{w: w}
	s.http = &http.Client{Transport: &http.Transport{
		DialContext: func(context.Context, string, string) (net.Conn, error) {
			s.dials++
			if !w.s.start.ProxyProtocol {
				return w.dial(from).nc, nil
			}
			return w.reach(from).nc, nil
		},
	}}
	return s
}

// close lets go of the connections that are not in use.
func (s *surfer) close() { s.http.CloseIdleConnections() }

// page is an answer that was read wholly.
type page struct {
	status int
	header http.Header
	body   string
}

func (s *surfer) do(method, target string, body []byte) page {
	s.w.t.Helper()
	reader := io.Reader(http.NoBody)
	if body != nil {
		reader = bytes.NewReader(body)
	}
	p, err := s.try(method, target, reader)
	if err != nil {
		s.w.t.Fatal(err)
	}
	return p
}

func (s *surfer) try(method, target string, body io.Reader) (page, error) {
	r, err := http.NewRequest(method, "http://relay.example.org"+target, body)
	if err != nil {
		return page{}, err
	}
	if body != http.NoBody {
		r.Header.Set("Content-Type", "application/json")
	}
	if s.credential != "" {
		r.Header.Set("X-Api-Key", s.credential)
	}
	a, err := s.http.Do(r)
	if err != nil {
		return page{}, err
	}
	defer a.Body.Close()
	b, err := io.ReadAll(a.Body)
	return page{a.StatusCode, a.Header, string(b)}, err
}

// want does a request whose answer must have a status.
func (s *surfer) want(status int, method, target string, body []byte) page {
	s.w.t.Helper()
	p := s.do(method, target, body)
	if p.status != status {
		s.w.t.Fatalf("%s %s: %d %s; want %d", method, target, p.status, p.body, status)
	}
	return p
}

func toJSON(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return b
}

type object map[string]any

// letterTo is the number n of somebody's messages.
func letterTo(to wire.Identity, from ed25519.PrivateKey, n int, body string) []byte {
	at := time.Now().UTC().Format(time.RFC3339)
	return toJSON(object{"id": messageID(n).String(), "sender": identity(from).String(), "recipient": to.String(), "sent_at": at,
		"body": []byte(body), "signature": ed25519.Sign(from, wire.MessageText(messageID(n), identity(from), to, at, []byte(body)))})
}

// forgedTo is a message whose signature is nobody's.
func forgedTo(to wire.Identity, from ed25519.PrivateKey) []byte {
	return toJSON(object{"id": messageID(1).String(), "sender": identity(from).String(), "recipient": to.String(),
		"sent_at": time.Now().UTC().Format(time.RFC3339), "body": "", "signature": make([]byte, 64)})
}

func (s *surfer) publish(key ed25519.PrivateKey, bundle string) {
	s.w.t.Helper()
	at := time.Now().UTC().Format(time.RFC3339)
	s.want(200, "PUT", "/identities/"+identity(key).String(), toJSON(object{
		"bundle": []byte(bundle), "bundle_signature": ed25519.Sign(key, wire.BundleText([]byte(bundle))), "sent_at": at,
		"signature": ed25519.Sign(key, wire.IdentityText(identity(key), []byte(bundle), at)),
	}))
}

// fetch returns the bodies of what waits.
func (s *surfer) fetch(key ed25519.PrivateKey) (bodies []string) {
	s.w.t.Helper()
	id := identity(key)
	var challenge struct{ Nonce string }
	json.Unmarshal([]byte(s.want(200, "GET", "/auth/challenge?identity="+id.String(), nil).body), &challenge)
	signature := base64.StdEncoding.EncodeToString(ed25519.Sign(key, wire.MailboxText(id, challenge.Nonce)))
	var got struct{ Messages []struct{ Body []byte } }
	p := s.want(200, "GET", "/messages?"+url.Values{"identity": {id.String()}, "nonce": {challenge.Nonce}, "signature": {signature}}.Encode(), nil)
	if err := json.Unmarshal([]byte(p.body), &got); err != nil {
		s.w.t.Fatalf("%v: %s", err, p.body)
	}
	for _, m := range got.Messages {
		bodies = append(bodies, string(m.Body))
	}
	return bodies
}

func (s *surfer) ack(key ed25519.PrivateKey, n int) page {
	s.w.t.Helper()
	at := time.Now().UTC().Format(time.RFC3339)
	ids := []wire.MessageID{messageID(n)}
	return s.want(200, "POST", "/acks", toJSON(object{"sender": identity(key).String(), "ids": []string{ids[0].String()}, "sent_at": at,
		"signature": ed25519.Sign(key, wire.AcksText(identity(key), ids, at))}))
}

// A message over HTTP waits for who is away, reaches who is connected at once, and
// is charged to the mailbox until it is acknowledged, by whichever way.
func TestMessageAPI(t *testing.T) {
	eachFront(t, fronted, func(t *testing.T, w *world) {
		a, b := w.surf("192.0.2.1:1"), w.surf("192.0.2.2:1")
		defer b.close()
		defer a.close()
		a.want(404, "POST", "/messages", letterTo(idOf(2), keyOf(1), 1, "x"))
		b.publish(keyOf(2), "a bundle")
		if p := a.want(200, "GET", "/identities/"+idOf(2).String(), nil); !strings.Contains(p.body, base64.StdEncoding.EncodeToString([]byte("a bundle"))) {
			t.Errorf("%s", p.body)
		}
		if st := w.s.dir.stats(); st.identities != 1 || st.connected != 0 {
			t.Errorf("%+v", st)
		}
		for i, body := range []string{"first", "second"} {
			if p := a.want(202, "POST", "/messages", letterTo(idOf(2), keyOf(1), i, body)); !strings.Contains(p.body, `"status":"queued"`) {
				t.Errorf("%s", p.body)
			}
		}
		if got := b.fetch(keyOf(2)); !slices.Equal(got, []string{"first", "second"}) {
			t.Errorf("%q", got)
		}
		if p := b.ack(keyOf(2), 0); p.body != "{\"acknowledged\":1}\n" {
			t.Errorf("%s", p.body)
		}
		session := w.as("192.0.2.2:2", 2)
		session.gets(idOf(1), 1, 2)
		if p := a.want(202, "POST", "/messages", letterTo(idOf(2), keyOf(1), 2, "third")); !strings.Contains(p.body, `"status":"delivered"`) {
			t.Errorf("%s", p.body)
		}
		if m := want[wire.Message](session); !m.Stored || m.Sender != idOf(1) || m.ID != messageID(2) || string(m.Payload) != "third" {
			t.Errorf("%+v", m)
		}
		if st := w.mailStats(); st.Messages != 2 || st.InFlight != 2 {
			t.Errorf("%+v", st)
		}
		session.acks(1, 3)
		if st := w.mailStats(); st.Messages != 0 {
			t.Errorf("%+v", st)
		}
		// What was sent over HTTP is acknowledged over it too, in flight or not.
		a.want(202, "POST", "/messages", letterTo(idOf(2), keyOf(1), 3, "fourth"))
		want[wire.Message](session)
		b.ack(keyOf(2), 3)
		if st := w.mailStats(); st.Messages != 0 || st.InFlight != 0 {
			t.Errorf("%+v", st)
		}
		a.want(200, "GET", "/health", nil)
		if a.dials != 1 || b.dials != 1 {
			t.Errorf("%d and %d connections", a.dials, b.dials)
		}
		if st := w.s.gate.Stats(time.Now()); st.Connections != 3 {
			t.Errorf("%+v", st)
		}
		for _, each := range reasons {
			w.wantOnly(each, 0)
		}
	})
}

// What limits a host goes by the address that the front end tells.
func TestAPIKnowsTheClient(t *testing.T) {
	eachFront(t, func(c *Config) { fronted(c); c.Limits.MaxConnectionsPerIP = 1 }, func(t *testing.T, w *world) {
		a, b := w.surf("192.0.2.1:1"), w.surf("192.0.2.2:1")
		defer b.close()
		defer a.close()
		a.publish(keyOf(2), "")
		for range 60 {
			a.want(401, "POST", "/messages", forgedTo(idOf(2), keyOf(1)))
		}
		if p := a.want(429, "POST", "/messages", forgedTo(idOf(2), keyOf(1))); !strings.Contains(p.body, `"scope":"host"`) || p.header.Get("Retry-After") != "1" {
			t.Errorf("%v %s", p.header, p.body)
		}
		b.want(202, "POST", "/messages", letterTo(idOf(2), keyOf(1), 1, ""))
		// The cap of connections is one for these as for all.
		w.reach("192.0.2.1:2").gone()
		w.wantOnly(ReasonPerIPCap, 1)
	})
}

// A connection may ask as often as it likes, and become a session then.
func TestUpgradeOnAConnectionThatHasAsked(t *testing.T) {
	eachFront(t, func(c *Config) { fronted(c); c.RequireChannelBinding = c.ProxyProtocol }, func(t *testing.T, w *world) {
		p := w.reach("192.0.2.1:1")
		for range 3 {
			p.write([]byte("GET /health HTTP/1.1\r\nHost: x\r\n\r\n"))
			r := p.response()
			io.Copy(io.Discard, r.Body)
			if r.StatusCode != 200 {
				t.Fatalf("status %d", r.StatusCode)
			}
		}
		p.upgrade()
		p.hello()
		if w.edge != nil {
			p.publishAs(keyOf(1), nil) // bound to the TLS session all the same
		}
		synctest.Wait() // what the caller held is given back beside its session's start
		if held, _ := w.s.bufferBudget.sums(); held > 2*readSize {
			t.Errorf("%d bytes are charged", held)
		}
		if st := w.s.gate.Stats(time.Now()); st.Connections != 1 || w.s.count.connections.Load() != 1 {
			t.Errorf("%+v", st)
		}
		p.nc.Close()
		synctest.Wait()
		if st := w.s.gate.Stats(time.Now()); st.Connections != 0 {
			t.Errorf("%+v", st)
		}
	})
	for _, row := range []struct {
		name, request string
		status        int
	}{
		{"no upgrade", "GET /relay HTTP/1.1\r\nHost: x\r\n\r\n", 404},
		{"an upgrade to something else", strings.Replace(upgradeRequest, "websocket", "h2c", 1), 404},
		{"another version", strings.Replace(upgradeRequest, "Version: 13", "Version: 8", 1), 426},
		{"no key", strings.Replace(upgradeRequest, "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n", "", 1), 400},
		{"two keys", strings.Replace(upgradeRequest, "Sec-WebSocket-Version", "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version", 1), 400},
		{"a body", strings.Replace(upgradeRequest, "Upgrade: w", "Content-Length: 1\r\nUpgrade: w", 1) + "x", 400},
		{"another path", strings.Replace(upgradeRequest, "/relay", "/other", 1), 404},
		{"no route", "DELETE /messages HTTP/1.1\r\nHost: x\r\n\r\n", 404},
		{"a masked path", "GET /h%65alth HTTP/1.1\r\nHost: x\r\n\r\n", 404},
	} {
		bubble(t, nil, func(t *testing.T, w *world) {
			p := w.dial("192.0.2.1:1")
			p.write([]byte("GET /health HTTP/1.1\r\nHost: x\r\n\r\n" + row.request))
			io.Copy(io.Discard, p.response().Body)
			r := p.response()
			body, err := io.ReadAll(r.Body)
			if r.StatusCode != row.status || err != nil || bytes.Contains(bytes.ToLower(body), []byte("relay")) || !r.Close {
				t.Errorf("%s: %d %s", row.name, r.StatusCode, body)
			}
			if n, err := p.read.Read(make([]byte, 1)); err != io.EOF {
				t.Errorf("%s: %d, %v", row.name, n, err)
			}
			if decoys := w.s.count.decoys.Load(); (decoys == 1) != (row.status == 404) {
				t.Errorf("%s: %d decoys", row.name, decoys)
			}
		})
	}
}

// Frames that stand right behind an upgrade on such a connection are not lost.
func TestFramesBehindALaterUpgrade(t *testing.T) {
	bubble(t, nil, func(t *testing.T, w *world) {
		p := w.dial("192.0.2.1:1")
		hello := masked(0x82, wire.Hello{Version: wire.Version}.Append(nil))
		filler := masked(0x89, make([]byte, 125)) // more than a buffer of the server
		p.write(append([]byte("GET /health HTTP/1.1\r\nHost: x\r\n\r\n"+upgradeRequest), append(bytes.Repeat(filler, 50), hello...)...))
		io.Copy(io.Discard, p.response().Body)
		if r := p.response(); r.StatusCode != 101 {
			t.Fatalf("status %d", r.StatusCode)
		}
		p.pongs.Store(false)
		p.listen()
		for {
			r := p.next()
			if r.op != 0x0a {
				if r.op != 2 || wire.Type(r.payload[0]) != wire.TypeWelcome {
					t.Fatalf("opcode %x", r.op)
				}
				break
			}
		}
	})
}

// The times of a connection that asks.
func TestAPITimes(t *testing.T) {
	const get = "GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
	const half = "POST /messages HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{"
	for _, row := range []struct {
		name  string
		write func(p *peer)
		ends  time.Duration
	}{
		{"nothing after an answer", func(p *peer) { p.write([]byte(get)) }, pauseTime},
		{"half a head after an answer", func(p *peer) { p.write([]byte(get + "GET /hea")) }, headTime},
		{"half a body", func(p *peer) { p.write([]byte(half)) }, requestTime},
		{"a body that drips", func(p *peer) {
			p.write([]byte(half))
			go func() {
				for {
					time.Sleep(time.Second)
					if _, err := p.nc.Write([]byte(" ")); err != nil {
						return
					}
				}
			}()
		}, requestTime},
	} {
		t.Run(row.name, func(t *testing.T) {
			bubble(t, nil, func(t *testing.T, w *world) {
				p := w.dial("192.0.2.1:1")
				began := time.Now()
				row.write(p)
				io.Copy(io.Discard, p.nc)
				if took := time.Since(began); took < row.ends || took > row.ends+time.Second {
					t.Errorf("it ended after %v, want %v", took, row.ends)
				}
				p.nc.Close()
				time.Sleep(time.Second)
				synctest.Wait()
				if st := w.s.gate.Stats(time.Now()); st.Connections != 0 || w.s.count.open.Load() != 0 {
					t.Errorf("%+v", st)
				}
			})
		})
	}
	// Who takes nothing of an answer is cut.
	bubble(t, nil, func(t *testing.T, w *world) {
		s := w.surf("192.0.2.9:1")
		s.publish(keyOf(2), strings.Repeat("x", wire.MaxBundle))
		s.close()
		p := w.dial("192.0.2.1:1")
		began := time.Now()
		for err := error(nil); err == nil; {
			// As many answers as fit nowhere.
			_, err = p.nc.Write([]byte(strings.Repeat("GET /identities/"+idOf(2).String()+" HTTP/1.1\r\nHost: x\r\n\r\n", 20)))
		}
		if took := time.Since(began); took < replyTime || took > replyTime+time.Second {
			t.Errorf("it ended after %v", took)
		}
	})
}

// A fault in one request ends its connection, and nothing else.
func TestAPIFault(t *testing.T) {
	guard := func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Fault") != "" {
				panic("a fault at " + r.RemoteAddr)
			}
			next.ServeHTTP(w, r)
		})
	}
	bubbleServing(t, guard, func(t *testing.T, w *world) {
		a := w.surf("192.0.2.1:1")
		defer a.close()
		a.want(200, "GET", "/health", nil)
		p := w.dial("192.0.2.1:2")
		p.write([]byte("GET /health HTTP/1.1\r\nHost: x\r\nFault: yes\r\n\r\n"))
		if b, err := io.ReadAll(p.nc); len(b) > 0 || err != nil {
			t.Errorf("%q, %v", b, err)
		}
		a.want(200, "GET", "/health", nil)
		w.wantOnly(ReasonTaskPanic, 1)
		if log := w.log.String(); !strings.Contains(log, "panicked") || strings.Contains(log, "http:") {
			t.Errorf("%s", log)
		}
	})
}

// The request limit comes before all else, by credential or by the client's host.
func TestRequestLimit(t *testing.T) {
	eachFront(t, fronted, func(t *testing.T, w *world) {
		if err := w.s.SetRequestLimits(httpguard.Config{Limit: 3, WindowSecs: 60, NewCredentialsPerHostMinute: 30}); err != nil {
			t.Fatal(err)
		}
		a, b := w.surf("192.0.2.1:1"), w.surf("192.0.2.2:1")
		defer b.close()
		defer a.close()
		for range 3 {
			a.want(415, "POST", "/messages", nil)
		}
		p := a.want(429, "POST", "/messages", nil)
		if !strings.Contains(p.body, `"error":{"code":"rate_limit_exceeded"`) || p.header.Get("Retry-After") != "60" {
			t.Errorf("%v %s", p.header, p.body)
		}
		b.want(200, "GET", "/health", nil)
		a.credential = "another"
		a.want(200, "GET", "/health", nil)
		if n := w.s.count.overRequests.Load(); n != 1 {
			t.Errorf("%d refused", n)
		}
		if err := w.s.SetRequestLimits(httpguard.Config{}); err == nil {
			t.Error("limits of 0 were taken")
		}
	})
}

// A drain lets a request that is under way be answered, and ends who only waits.
func TestDrainAnswersRequests(t *testing.T) {
	arrived, going := make(chan struct{}, 1), make(chan struct{})
	guard := func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.RawQuery == "wait" {
				arrived <- struct{}{}
				<-going
			}
			next.ServeHTTP(w, r)
		})
	}
	for _, row := range []struct {
		name     string
		takes    time.Duration
		answered bool
	}{{"in time", time.Second, true}, {"too late", 3 * time.Second, false}} {
		arrived, going = make(chan struct{}, 1), make(chan struct{})
		bubbleServing(t, guard, func(t *testing.T, w *world) {
			arrived, going = make(chan struct{}, 1), make(chan struct{})
			idle, busy := w.surf("192.0.2.1:1"), w.surf("192.0.2.2:1")
			idle.want(200, "GET", "/health", nil)
			answer := make(chan string, 1)
			go func() {
				p, err := busy.try("GET", "/identities/"+idOf(1).String()+"?wait", nil)
				answer <- fmt.Sprint(p.status, err != nil)
			}()
			<-arrived
			stopped := make(chan struct{})
			began := time.Now()
			go func() {
				w.stop()
				close(stopped)
			}()
			synctest.Wait()
			if n := w.s.count.open.Load(); n != 1 {
				t.Errorf("%s: %d connections are open", row.name, n)
			}
			if _, err := w.ln.Dial(t.Context(), w.ln.Addr().(*net.TCPAddr).AddrPort()); err == nil {
				t.Errorf("%s: who came later was let in", row.name)
			}
			time.Sleep(row.takes)
			close(going)
			if got := <-answer; got != map[bool]string{true: "404 false", false: "0 true"}[row.answered] {
				t.Errorf("%s: %s", row.name, got)
			}
			<-stopped
			if took := time.Since(began); row.answered && took >= 2*time.Second {
				t.Errorf("%s: it took %v", row.name, took)
			}
			idle.close()
			busy.close()
		})
	}
}

// A client that vanishes, at whatever point of its request, leaves nothing behind.
func TestVanishedCallers(t *testing.T) {
	n := 3400
	if raceEnabled {
		n = 300
	}
	bubble(t, func(c *Config) {
		c.Limits.MaxConnectionsPerIP = 0
		c.MessageLimits = admission.MessageLimitsConfig{}
	}, func(t *testing.T, w *world) {
		s := w.surf("192.0.2.9:1")
		s.publish(keyOf(2), "")
		s.close()
		synctest.Wait()
		body := string(letterTo(idOf(2), keyOf(1), 1, strings.Repeat("x", 1000)))
		head := fmt.Sprintf("POST /messages HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n", len(body))
		for i, sent := range []string{head, head + body[:len(body)/2], head + body} {
			for j := range n {
				p := w.dial("192.0.2.1:1")
				p.write([]byte(sent))
				if j%2 == 0 {
					synctest.Wait()
				}
				p.nc.(interface{ Reset() }).Reset()
			}
			time.Sleep(requestTime)
			synctest.Wait()
			st := w.s.gate.Stats(time.Now())
			held, counts := w.s.bufferBudget.sums()
			if st.Connections != 0 || w.s.count.open.Load() != 0 || held != 0 || counts != 0 {
				t.Errorf("stage %d: %+v, %d open, %d bytes held", i, st, w.s.count.open.Load(), held)
			}
		}
		for range n { // a session that never came to be
			p := w.dial("192.0.2.1:1")
			p.write([]byte(upgradeRequest))
			p.nc.(interface{ Reset() }).Reset()
		}
		time.Sleep(headTime)
		synctest.Wait()
		if st := w.s.gate.Stats(time.Now()); st.Connections != 0 || w.s.count.open.Load() != 0 {
			t.Errorf("%+v", st)
		}
		for _, each := range reasons {
			w.wantOnly(each, 0)
		}
	})
}

// Bodies are charged to the buffer budget. When it is spent, the connection that
// holds most of it, of the source that does, is closed.
func TestBodiesAreCharged(t *testing.T) {
	bubble(t, func(c *Config) {
		proxied(c)
		c.Limits.MaxMessageBytes, c.Limits.BufferBudgetBytes = 64<<10, 1<<20
	}, func(t *testing.T, w *world) {
		const head = "POST /messages HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 90000\r\n\r\n"
		part := func(from string, n int) *peer {
			p := w.reach(from)
			p.write([]byte(head + `{"x":"` + strings.Repeat("x", n-6)))
			synctest.Wait()
			return p
		}
		light := part("192.0.2.1:1", 40_000)
		held, _ := w.s.bufferBudget.sums()
		if want := int64(callerCost + bodyCost*40_000); held < want-bodyCost*8192 || held > want {
			t.Errorf("%d bytes are charged, want about %d", held, want)
		}
		var heavy []*peer
		for range 4 {
			heavy = append(heavy, part("192.0.2.2:1", 40_000))
		}
		w.wantOnly(ReasonBufferShed, 1)
		heavy[0].gone()
		for _, p := range append(heavy[1:], light) {
			p.nc.SetReadDeadline(time.Now().Add(time.Second))
			if _, err := p.nc.Read(make([]byte, 1)); err == io.EOF {
				t.Error("another one was closed")
			}
			p.nc.Close()
		}
	})
}

// A sender that never had a circuit with the recipient is a stranger; one that had
// is none, for identity_ttl_secs after.
func TestContactsAreNoStrangers(t *testing.T) {
	for _, how := range []string{"named", "blinded"} {
		bubble(t, func(c *Config) {
			fronted(c)
			c.ProxyProtocol = false
			c.Limits.IdentityTTLSecs = 7200
			c.MessageLimits = admission.MessageLimitsConfig{}
		}, func(t *testing.T, w *world) {
			a, b := w.as("192.0.2.1:1", 1), w.as("192.0.2.2:1", 2)
			if how == "named" {
				w.pairUp(a, b)
			} else {
				w.blindPair(a, b, 1)
			}
			a.nc.Close()
			b.nc.Close()
			synctest.Wait()
			s := w.surf("192.0.2.1:2")
			defer s.close()
			contact := func(from, to int) bool {
				t.Helper()
				before := w.mailStats()
				// The mailbox is full for strangers of one source at a sixteenth.
				for i := range 62 {
					s.want(202, "POST", "/messages", letterTo(idOf(to), keyOf(from), before.Messages+i, ""))
				}
				return s.do("POST", "/messages", letterTo(idOf(to), keyOf(from), before.Messages+62, "")).status == 202
			}
			if !contact(1, 2) || !contact(2, 1) {
				t.Errorf("%s: who has had a circuit is a stranger", how)
			}
			s.publish(keyOf(3), "")
			if contact(1, 3) {
				t.Errorf("%s: who never had a circuit is none", how)
			}
			if w.rejected(ReasonQueueOverflow) != 1 {
				t.Errorf("%d overflows", w.rejected(ReasonQueueOverflow))
			}
			time.Sleep(2*time.Hour - time.Minute)
			if st := w.s.dir.stats(); st.contacts != 1 {
				t.Errorf("%+v", st)
			}
			time.Sleep(2 * time.Minute)
			if st := w.s.dir.stats(); st.contacts != 0 {
				t.Errorf("%+v", st)
			}
		})
	}
}

// Other message limits bind at once, and what was counted stays.
func TestMessageLimitsReload(t *testing.T) {
	bubble(t, func(c *Config) { c.MessageLimits.Sender.Minute = 3 }, func(t *testing.T, w *world) {
		s := w.surf("192.0.2.1:1")
		defer s.close()
		s.publish(keyOf(2), "")
		for i := range 3 {
			s.want(202, "POST", "/messages", letterTo(idOf(2), keyOf(1), i, ""))
		}
		s.want(429, "POST", "/messages", letterTo(idOf(2), keyOf(1), 3, ""))
		put := func(change func(*admission.MessageLimitsConfig)) {
			t.Helper()
			cfg := w.s.start
			change(&cfg.MessageLimits)
			r, err := w.s.Prepare(cfg)
			if err != nil {
				t.Fatal(err)
			}
			r.Apply()
		}
		put(func(c *admission.MessageLimitsConfig) { c.Sender.Minute, c.Sender.Hour = 0, 4 })
		s.want(202, "POST", "/messages", letterTo(idOf(2), keyOf(1), 3, ""))
		if p := s.want(429, "POST", "/messages", letterTo(idOf(2), keyOf(1), 4, "")); !strings.Contains(p.body, `"hour"`) {
			t.Errorf("%s", p.body)
		}
		put(func(c *admission.MessageLimitsConfig) { c.Sender.Minute, c.UnprovenPerHostMinute = 0, 1 })
		s.want(401, "POST", "/messages", forgedTo(idOf(2), keyOf(3)))
		s.want(429, "POST", "/messages", forgedTo(idOf(2), keyOf(3)))
		bad := w.s.start
		bad.MessageLimits.Global.Day = -2
		if _, err := w.s.Prepare(bad); err == nil || !strings.Contains(err.Error(), "message_limits.global.day") {
			t.Errorf("%v", err)
		}
	})
}

// Requests that come at once are answered one after another, in order.
func TestPipelinedRequests(t *testing.T) {
	bubble(t, nil, func(t *testing.T, w *world) {
		p := w.dial("192.0.2.1:1")
		p.write([]byte("GET /health HTTP/1.1\r\nHost: x\r\n\r\nGET /identities/x HTTP/1.1\r\nHost: x\r\n\r\nHEAD /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"))
		for _, want := range []int{200, 400} {
			r := p.response()
			io.Copy(io.Discard, r.Body)
			if r.StatusCode != want || r.Header.Get("Server") != "" || r.Header.Get("Date") == "" {
				t.Errorf("%d %v", r.StatusCode, r.Header)
			}
		}
		b, err := io.ReadAll(p.read)
		if !bytes.HasPrefix(b, []byte("HTTP/1.1 200 OK\r\n")) || !bytes.HasSuffix(b, []byte("\r\n\r\n")) || err != nil {
			t.Errorf("%q, %v", b, err)
		}
	})
}

// Heads are as long as they may be for an upgrade; on later requests the server's
// own buffer comes on top.
func TestAPIHeads(t *testing.T) {
	get := func(n int) []byte {
		const frame = "GET /health HTTP/1.1\r\nHost: x\r\nX-Filler: \r\n\r\n"
		return []byte(strings.Replace(frame, "X-Filler: ", "X-Filler: "+strings.Repeat("a", n-len(frame)), 1))
	}
	for _, row := range []struct{ first, second, want int }{{8192, 8192, 200}, {100, 8192, 200}, {100, 16 << 10, 431}, {8193, 0, 431}} {
		bubble(t, nil, func(t *testing.T, w *world) {
			p := w.dial("192.0.2.1:1")
			go func() {
				p.nc.Write(get(row.first))
				if row.second > 0 {
					p.nc.Write(get(row.second))
				}
			}()
			r := p.response()
			io.Copy(io.Discard, r.Body)
			if row.second > 0 {
				r = p.response()
			}
			if r.StatusCode != row.want {
				t.Errorf("%d, then %d: status %d", row.first, row.second, r.StatusCode)
			}
		})
	}
}

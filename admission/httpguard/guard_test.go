package httpguard

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"relayedge/admission"
)

// request returns a request from that address, with those headers as they would
// have come over HTTP: name, value, name, value.
func request(addr string, headers ...string) *http.Request {
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.RemoteAddr = addr
	for i := 0; i < len(headers); i += 2 {
		r.Header.Add(headers[i], headers[i+1])
	}
	return r
}

// addrHeader is an Options.Addr for the requests of request.
func addrHeader(r *http.Request) netip.Addr {
	addr, _ := netip.ParseAddr(r.RemoteAddr)
	return addr
}

func newGuard(t testing.TB, c Config, o Options) *Guard {
	t.Helper()
	g, err := New(c, o)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// Spec 002: the key is derived in order, first match wins.
func TestWhomARequestIsCountedFor(t *testing.T) {
	g := newGuard(t, DefaultConfig(), Options{Addr: addrHeader, Embedded: []netip.Prefix{netip.MustParsePrefix("64:ff9b::/96")}})
	now := time.Now()
	credential := func(token string) admission.Key { return g.options.Keys.Key("credential", token) }
	host := func(prefix string) admission.Key { return g.options.Keys.Key("ip", prefix) }
	long, longest := strings.Repeat("k", credentialBytes+1), strings.Repeat("k", credentialBytes)
	v4 := host("192.0.2.1/32")
	for _, tt := range []struct {
		name    string
		request *http.Request
		want    admission.Key
	}{
		{"a bearer", request("192.0.2.1", "Authorization", "Bearer tok"), credential("tok")},
		{"an api key", request("192.0.2.1", "X-Api-Key", "tok"), credential("tok")},
		{"both, of one credential", request("192.0.2.1", "Authorization", "Bearer tok", "X-Api-Key", "tok"), credential("tok")},
		{"both, of two credentials", request("192.0.2.1", "Authorization", "Bearer tok", "X-Api-Key", "other"), v4},
		{"the scheme in any case", request("192.0.2.1", "Authorization", "bEARER tok"), credential("tok")},
		{"the header in any case", request("192.0.2.1", "aUTHORIZATION", "Bearer tok"), credential("tok")},
		{"the api key's header in any case", request("192.0.2.1", "X-API-KEY", "tok"), credential("tok")},
		{"blanks between and around", request("192.0.2.1", "Authorization", " \tBearer \t tok \t"), credential("tok")},
		{"a tab between", request("192.0.2.1", "Authorization", "Bearer\ttok"), credential("tok")},
		{"blanks around an api key", request("192.0.2.1", "X-Api-Key", "\t tok  "), credential("tok")},
		{"the header twice, alike", request("192.0.2.1", "X-Api-Key", "tok", "X-Api-Key", "tok "), credential("tok")},
		{"the header twice, of two credentials", request("192.0.2.1", "X-Api-Key", "tok", "X-Api-Key", "other"), v4},
		{"two bearers", request("192.0.2.1", "Authorization", "Bearer tok", "Authorization", "Bearer other"), v4},
		{"a token in another case", request("192.0.2.1", "X-Api-Key", "TOK"), credential("TOK")},
		{"a token with colons and braces", request("192.0.2.1", "X-Api-Key", "a:{b}:{}"), credential("a:{b}:{}")},
		{"a token with blanks in it", request("192.0.2.1", "Authorization", "Bearer a b"), credential("a b")},
		{"a token with a tab in it", request("192.0.2.1", "Authorization", "Bearer a\tb"), credential("a\tb")},
		{"a token of bytes that are no text", request("192.0.2.1", "X-Api-Key", "\xff\xfe"), credential("\xff\xfe")},
		{"the longest token", request("192.0.2.1", "X-Api-Key", longest), credential(longest)},
		{"a token that is too long", request("192.0.2.1", "X-Api-Key", long), v4},
		{"64 KiB", request("192.0.2.1", "Authorization", "Bearer "+strings.Repeat("k", 65536)), v4},
		{"a line end", request("192.0.2.1", "X-Api-Key", "tok\r\nX-Evil: 1"), v4},
		{"a NUL", request("192.0.2.1", "X-Api-Key", "tok\x00"), v4},
		{"a DEL", request("192.0.2.1", "X-Api-Key", "tok\x7f"), v4},
		{"an empty bearer", request("192.0.2.1", "Authorization", "Bearer "), v4},
		{"a bearer without a token", request("192.0.2.1", "Authorization", "Bearer"), v4},
		{"a scheme that only begins so", request("192.0.2.1", "Authorization", "Bearertok x"), v4},
		{"another scheme", request("192.0.2.1", "Authorization", "Basic dXNlcjpwYXNz"), v4},
		{"another scheme and an api key", request("192.0.2.1", "Authorization", "Basic dXNlcjpwYXNz", "X-Api-Key", "tok"), credential("tok")},
		{"an empty api key and a bearer", request("192.0.2.1", "X-Api-Key", "", "Authorization", "Bearer tok"), credential("tok")},
		{"no credential", request("192.0.2.1"), v4},
		{"IPv4 in IPv6", request("::ffff:192.0.2.1"), v4},
		{"IPv4 behind NAT64", request("64:ff9b::192.0.2.1"), v4},
		{"an IPv6 host", request("2001:db8:1:2:3:4:5:6"), host("2001:db8:1:2::/64")},
		{"the same host", request("2001:db8:1:2::9%eth0"), host("2001:db8:1:2::/64")},
		{"no address", request("@"), g.anon},
		{"a client's own forwarding headers", request("192.0.2.1", "X-Forwarded-For", "198.51.100.1", "X-Real-IP", "198.51.100.1"), v4},
	} {
		t.Run(tt.name, func(t *testing.T) {
			g.credentials.SetLimit(1000, time.Minute)
			if got := g.key(tt.request, now); got != tt.want {
				t.Errorf("it is counted under %v, want %v", got, tt.want)
			}
		})
	}
	if nobody := newGuard(t, DefaultConfig(), Options{}); nobody.key(request("192.0.2.1"), now) != nobody.anon {
		t.Error("a server that knows no addresses counts a request for one")
	}
	if text := credential("tok").String(); len(text) != 32 || newGuard(t, DefaultConfig(), Options{}).options.Keys.Key("credential", "tok") == credential("tok") {
		t.Errorf("the key %s is not 32 characters of a hash with a secret", text)
	}
}

// Nobody doubles an allowance by alternating headers.
func TestOneWindowForBothHeaders(t *testing.T) {
	g := newGuard(t, Config{Limit: 4, WindowSecs: 60, NewCredentialsPerHostMinute: 30}, Options{Addr: addrHeader})
	for i, r := range []*http.Request{
		request("192.0.2.1", "Authorization", "Bearer tok"),
		request("192.0.2.2", "X-Api-Key", "tok"),
		request("192.0.2.1", "Authorization", "bearer  tok "),
		request("192.0.2.3", "x-api-key", "tok"),
	} {
		if d := g.Take(r); !d.Allowed || d.Remaining != int64(3-i) {
			t.Fatalf("the request %d: %+v", i, d)
		}
	}
	if d := g.Take(request("192.0.2.4", "X-Api-Key", "tok")); d.Allowed {
		t.Fatalf("%+v", d)
	}
}

// Only new credentials cost their host; beyond its number they count for the host.
func TestNewCredentialsOfAHost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGuard(t, Config{Limit: 100, WindowSecs: 60, NewCredentialsPerHostMinute: 3}, Options{Addr: addrHeader})
		take := func(addr, token string) int64 { return g.Take(request(addr, "X-Api-Key", token)).Remaining }
		for n := range 3 {
			for left := range int64(5) {
				if got := take("192.0.2.1", "key-"+strconv.Itoa(n)); got != 99-left {
					t.Fatalf("%d remain, want %d", got, 99-left)
				}
			}
		}
		for n := range int64(5) {
			if got := take("192.0.2.1", "key-"+strconv.FormatInt(10+n, 10)); got != 99-n {
				t.Fatalf("%d remain of a credential too many, want the host's %d", got, 99-n)
			}
		}
		if got := take("192.0.2.1", "key-0"); got != 94 {
			t.Fatalf("%d remain of a known one, want 94", got)
		}
		if got := take("192.0.2.2", "key-10"); got != 99 {
			t.Fatalf("%d remain of another host's, want 99", got)
		}
		time.Sleep(20 * time.Second)
		if got := take("192.0.2.1", "key-20"); got != 99 {
			t.Fatalf("%d remain a third of a minute later, want 99", got)
		}
	})
}

func answer(g *Guard, r *http.Request) *http.Response {
	w := httptest.NewRecorder()
	g.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, "next")
	})).ServeHTTP(w, r)
	return w.Result()
}

// Spec 002: the body of a 429, its Retry-After, and the window as a whole.
func TestRefusal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told []admission.Decision
		g := newGuard(t, Config{Limit: 2, WindowSecs: 60, NewCredentialsPerHostMinute: 30}, Options{
			Addr:      addrHeader,
			RequestID: func(*http.Request) string { return "01J8Z-id" },
			Refused:   func(d admission.Decision) { told = append(told, d) },
		})
		time.Sleep(300 * time.Millisecond) // the window ends between two seconds
		end := time.Now().Add(time.Minute)
		for range 2 {
			if a := answer(g, request("192.0.2.1")); a.StatusCode != 200 {
				t.Fatal(a.Status)
			}
			time.Sleep(10 * time.Second)
		}
		a := answer(g, request("192.0.2.1"))
		body, _ := io.ReadAll(a.Body)
		want := fmt.Sprintf(`{"error":{"code":"rate_limit_exceeded","message":"Too many requests.","requestId":"01J8Z-id","rateLimit":{"limit":2,"remaining":0,"resetAt":%d}}}`, end.Unix()+1)
		if string(body) != want {
			t.Errorf("the body is\n%s\nwant\n%s", body, want)
		}
		if a.StatusCode != 429 || a.Header.Get("Retry-After") != "40" || a.Header.Get("Content-Type") != "application/json" || a.ContentLength != int64(len(body)) || a.Header.Get("Cache-Control") != "no-store" {
			t.Errorf("%s %v", a.Status, a.Header)
		}
		// 9.5 seconds are told as 10, half a second and less as 1.
		for _, step := range []struct {
			until time.Duration
			want  string
		}{{9500 * time.Millisecond, "10"}, {500 * time.Millisecond, "1"}, {time.Nanosecond, "1"}} {
			time.Sleep(time.Until(end) - step.until)
			if a := answer(g, request("192.0.2.1")); a.StatusCode != 429 || a.Header.Get("Retry-After") != step.want {
				t.Errorf("%v before the end: %s, Retry-After %s, want %s", step.until, a.Status, a.Header.Get("Retry-After"), step.want)
			}
		}
		if len(told) != 4 {
			t.Errorf("%d refusals are told, want 4", len(told))
		}
		time.Sleep(time.Until(end))
		if a := answer(g, request("192.0.2.1")); a.StatusCode != 200 {
			t.Errorf("after the window: %s", a.Status)
		}
	})
}

// Whoever waits for what Retry-After says is let in, at whatever phase of the
// window and of the second the refusal came.
func TestRetryAfterTheWaitSucceeds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGuard(t, Config{Limit: 1, WindowSecs: 7, NewCredentialsPerHostMinute: 30}, Options{Addr: addrHeader})
		for i := range 1000 {
			for g.Take(request("192.0.2.1")).Allowed {
				time.Sleep(time.Duration(i*7919%7000) * time.Millisecond)
			}
			a := answer(g, request("192.0.2.1"))
			var body refusal
			if err := json.NewDecoder(a.Body).Decode(&body); err != nil {
				t.Fatal(err)
			}
			secs, err := strconv.Atoi(a.Header.Get("Retry-After"))
			if err != nil || secs < 1 || secs > 7 {
				t.Fatalf("Retry-After is %q", a.Header.Get("Retry-After"))
			}
			if apart := body.Error.RateLimit.ResetAt - time.Now().Unix() - int64(secs); apart < -1 || apart > 1 {
				t.Fatalf("Retry-After and resetAt are %d seconds apart", apart)
			}
			time.Sleep(time.Duration(secs) * time.Second)
			if a := answer(g, request("192.0.2.1")); a.StatusCode != 200 {
				t.Fatalf("after %d seconds: %s", secs, a.Status)
			}
		}
	})
}

// unavailable is a store that is away.
type unavailable struct{}

func (unavailable) Take(context.Context, admission.Key, time.Time) admission.Decision {
	return admission.Decision{Unavailable: true, RetryAfter: 1500 * time.Millisecond}
}

func TestStoreUnavailable(t *testing.T) {
	g := newGuard(t, DefaultConfig(), Options{Windows: unavailable{}, RequestID: func(*http.Request) string { return "7" }})
	a := answer(g, request("192.0.2.1"))
	body, _ := io.ReadAll(a.Body)
	if want := `{"error":{"code":"store_unavailable","message":"The request limit cannot be looked up; try again.","requestId":"7"}}`; string(body) != want {
		t.Errorf("the body is\n%s\nwant\n%s", body, want)
	}
	if a.StatusCode != 503 || a.Header.Get("Retry-After") != "2" {
		t.Errorf("%s, Retry-After %s", a.Status, a.Header.Get("Retry-After"))
	}
	if err := g.SetConfig(DefaultConfig()); err != nil {
		t.Error(err)
	}
}

// The id is the server's own where it is one, and else one is made.
func TestRequestID(t *testing.T) {
	given := ""
	g := newGuard(t, DefaultConfig(), Options{RequestID: func(*http.Request) string { return given }})
	ask := request("192.0.2.1")
	for _, id := range []string{"a", "01J8Z.Ab_9-", strings.Repeat("x", 128)} {
		if given = id; g.requestID(ask) != id {
			t.Errorf("%q is not taken", id)
		}
	}
	made := map[string]bool{}
	for _, id := range []string{"", "a b", "a\n", `a"`, "ä", strings.Repeat("x", 129)} {
		given = id
		got := g.requestID(ask)
		if !isID(got) || len(got) != 32 || made[got] {
			t.Errorf("for %q there is %q", id, got)
		}
		made[got] = true
	}
	if id := newGuard(t, DefaultConfig(), Options{}).requestID(ask); len(id) != 32 {
		t.Errorf("without a server's id there is %q", id)
	}
}

// No answer has the credential or the address in it.
func TestNothingOfTheClientIsTold(t *testing.T) {
	g := newGuard(t, Config{Limit: 1, WindowSecs: 60, NewCredentialsPerHostMinute: 1}, Options{Addr: addrHeader})
	for _, r := range []*http.Request{
		request("192.0.2.77", "Authorization", "Bearer tok-SECRET-1"),
		request("192.0.2.77", "X-Api-Key", "tok-SECRET-2"),
		request("192.0.2.77"),
	} {
		g.Take(r)
		var all bytes.Buffer
		if a := answer(g, r); a.StatusCode != 429 {
			t.Fatal(a.Status)
		} else if err := a.Write(&all); err != nil {
			t.Fatal(err)
		}
		if text := all.String(); strings.Contains(text, "SECRET") || strings.Contains(text, "192.0.2.77") {
			t.Errorf("the answer tells\n%s", text)
		}
	}
}

// Inventing credentials opens its host so many windows a minute, and touches
// nobody else's.
func TestForgedCredentialsLeaveOthersWhole(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // in which all of it is one moment
		windows := admission.NewFixedWindows(6000, time.Minute)
		g := newGuard(t, DefaultConfig(), Options{Addr: addrHeader, Windows: windows})
		n := 1_000_000
		if underRace {
			n = 50_000
		}
		forged := request("192.0.2.66")
		allowed := 0
		for i := range n {
			forged.Header["X-Api-Key"] = []string{"invented-" + strconv.Itoa(i)}
			if g.Take(forged).Allowed {
				allowed++
			}
		}
		if allowed != 6030 {
			t.Errorf("%d of %d are allowed, want one each of 30 and the host's 6,000", allowed, n)
		}
		if rows, known := windows.Rows(time.Now()), g.credentials.Rows(time.Now()); rows != 31 || known != 30 {
			t.Errorf("%d credentials are known and %d windows open, want 30 and 31", known, rows)
		}
		for i := range 100 {
			if d := g.Take(request("198.51.100." + strconv.Itoa(i))); !d.Allowed || d.Remaining != 5999 {
				t.Fatalf("another host is told %+v", d)
			}
			if d := g.Take(request("198.51.100."+strconv.Itoa(i), "X-Api-Key", "real-"+strconv.Itoa(i))); !d.Allowed || d.Remaining != 5999 {
				t.Fatalf("another host's credential is told %+v", d)
			}
		}
	})
}

// Over HTTP as it is: net/http refuses what is no header, and what comes through
// is read as the table says.
func TestOverHTTP(t *testing.T) {
	g := newGuard(t, Config{Limit: 1, WindowSecs: 3600, NewCredentialsPerHostMinute: 30}, Options{
		Addr: func(r *http.Request) netip.Addr {
			peer, _ := netip.ParseAddrPort(r.RemoteAddr)
			return peer.Addr()
		},
	})
	reached := 0
	server := httptest.NewServer(g.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached++ })))
	defer server.Close()
	get := func(headers ...string) int {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL, strings.NewReader(strings.Repeat("b", 1<<16)))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", headers[0])
		a, err := server.Client().Do(r)
		if err != nil {
			t.Fatal(err)
		}
		io.Copy(io.Discard, a.Body)
		a.Body.Close()
		return a.StatusCode
	}
	for _, tt := range []struct {
		authorization string
		want          int
	}{{"Bearer a", 200}, {"bearer   a", 429}, {"Bearer a ", 429}, {"Bearer b", 200}, {"Basic a", 200}, {"Basic b", 429}} {
		if got := get(tt.authorization); got != tt.want {
			t.Errorf("%q gets %d, want %d", tt.authorization, got, tt.want)
		}
	}
	if reached != 3 {
		t.Errorf("%d requests reached the next handler, want 3", reached)
	}
}

func BenchmarkGuard(b *testing.B) {
	for _, bb := range []struct {
		name    string
		request *http.Request
	}{
		{"credential", request("192.0.2.1", "Authorization", "Bearer tok-1234567890")},
		{"host", request("2001:db8::1")},
	} {
		b.Run(bb.name, func(b *testing.B) {
			g := newGuard(b, Config{Limit: 1_000_000_000, WindowSecs: 86400, NewCredentialsPerHostMinute: 30}, Options{Addr: addrHeader})
			b.ReportAllocs()
			for b.Loop() {
				if !g.Take(bb.request).Allowed {
					b.Fatal("refused")
				}
			}
		})
	}
}

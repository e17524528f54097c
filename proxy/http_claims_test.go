package proxy

import (
	"context"
	"io"
	"net/http"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"relayedge/internal/proxyheader"
)

// spellings are ways in which a client may write a field that the edge sets or
// that others would believe.
var spellings = []string{
	"X-Real-IP", "x-real-ip", "X-REAL-IP", "X_Real_IP", "x_real_ip", "X-Real_IP", "X.Real.IP", "X!Real~IP", "X-RealIP", "X-Real-Port",
	"X-Forwarded-For", "x_forwarded_for", "X-Forwarded_For", "X-Forwarded", "X-Forwarded-Proto", "X-Forwarded-Host", "X-Forwarded-Port",
	"X-Forwarded-Server", "X-Forwarded-Client-Cert", "X-Forwarded-Anything", "X-Original-Forwarded-For", "X-Original-URL", "X-Rewrite-URL",
	"Forwarded", "FORWARDED", "Via", "True-Client-IP", "True_Client_IP", "CF-Connecting-IP", "cf-connecting-ipv6", "Fastly-Client-IP", "Fly-Client-IP",
	"Client-IP", "X-Client-IP", "X-Cluster-Client-IP", "X-Originating-IP", "X-Remote-IP", "X-Remote-Addr", "Remote-Addr", "X-Envoy-External-Address",
	"X-Azure-ClientIP", "X-Appengine-User-IP", "WL-Proxy-Client-IP", "Proxy-Client-IP", "HTTP_X_FORWARDED_FOR", "HTTP_CLIENT_IP", "X-Forward-For",
	"X-SSL-Client-Cert", "SSL-Client-Verify", "Client-Cert", "X-Scheme", "Front-End-Https", "Proxy", "X-Request-ID", "X_Request_Id",
}

const liar = "203.0.113.66"

// recording is a relay that keeps the headers that it was sent.
func recording(got *[]http.Header) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		header := r.Header.Clone()
		for name, values := range r.Trailer {
			header["Trailer "+name] = values
		}
		*got = append(*got, header)
		telling(w, r)
	}
}

// No spelling of a claim reaches the relay, plain or with an upgrade, whatever
// the relay is told by; and what the edge says itself stands once.
func TestHTTPClaimsAreNotBelieved(t *testing.T) {
	var fields []string
	for _, name := range spellings {
		fields = append(fields, name+": "+liar, name+": "+liar+"-again")
	}
	// Fields that are named by Connection are for the next hop alone. Ours are not the client's to take away.
	fields = append(fields, "Connection: X-Real-IP, X-Forwarded-For, X-Forwarded-Proto, X-Forwarded-Host, X-Request-Id, Own", "Own: hop", "X-Own: "+liar)
	for _, row := range []struct{ told, field string }{
		{"x-real-ip", "X-Real-Ip"},
		{"x-forwarded-for", "X-Forwarded-For"},
		{"none", ""},
	} {
		t.Run(row.told, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				var got []http.Header
				e := newHTTPEdge(t, recording(&got), func(cfg *edgeConfig) { cfg.upstream.ClientAddress = row.told })
				e.client().ask("GET /", fields...)
				c := e.client()
				if response, _ := c.ask("GET /socket", append(webSocket, fields...)...); response.StatusCode != 101 {
					t.Fatalf("the upgrade: %s", response.Status)
				}
				c.Close()
				want := map[string]string{"X-Forwarded-Proto": "http", "X-Forwarded-Host": "relay.example.org", "X-Own": liar}
				if row.field != "" {
					want[row.field] = "192.0.2.10"
				}
				synctest.Wait()
				if len(got) != 2 {
					t.Fatalf("%d requests came", len(got))
				}
				for i, header := range got {
					if id := header.Get(RequestID); !ids.MatchString(id) {
						t.Errorf("request %d is named %q", i, id)
					}
					for name, values := range header {
						text := strings.Join(values, "|")
						if name == RequestID {
							if strings.Contains(text, liar) || len(values) != 1 {
								t.Errorf("request %d: %s: %q", i, name, text)
							}
							continue
						}
						if (strings.Contains(text, liar) || isClaim(name)) && text != want[name] {
							t.Errorf("request %d: %s: %q", i, name, text)
						}
						if name == "Own" {
							t.Errorf("request %d: a field that Connection lists came", i)
						}
					}
					for name, value := range want {
						if values := header[name]; !slices.Equal(values, []string{value}) {
							t.Errorf("request %d: %s: %q, want %q", i, name, values, value)
						}
					}
				}
			})
		})
	}
}

// What comes behind a body could pass for a header.
func TestHTTPTrailersAreNotPassedOn(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		var got []http.Header
		e := newHTTPEdge(t, recording(&got), nil)
		c := e.client()
		c.send("POST /", "Transfer-Encoding: chunked", "Trailer: X-Real-IP, Checksum")
		mustWrite(t, c, []byte("4\r\nbody\r\n0\r\nX-Real-IP: "+liar+"\r\nChecksum: 1\r\nX-Forwarded-For: "+liar+"\r\n\r\n"))
		if response, body := c.answer(); response.StatusCode != 200 || !strings.Contains(body, "for 192.0.2.10") {
			t.Errorf("%s: %s", response.Status, body)
		}
		for name, values := range got[0] {
			if strings.HasPrefix(name, "Trailer") {
				t.Errorf("%s: %q", name, values)
			}
		}
	})
}

// Fields that no proxy sets pass as they are.
func TestHTTPOtherFieldsPass(t *testing.T) {
	for _, name := range []string{
		"Authorization", "X-Api-Key", "Cookie", "Origin", "User-Agent", "Accept", "Referer", "Idempotency-Key", "Traceparent",
		"X-Client-Info", "X-Client-Version", "X-Requested-With", "X-Http-Method-Override", "X-Csrf-Token", "Request-Id", "Sec-Websocket-Key",
		"Sec-Websocket-Protocol", "If-None-Match", "Content-Type", "Accept-Encoding", "Range", "X-Ipfs-Path", "Remote", "X_Own",
	} {
		if isClaim(name) {
			t.Errorf("%s is taken for a claim", name)
		}
	}
	for _, name := range spellings {
		if !isClaim(name) {
			t.Errorf("%s is not taken for a claim", name)
		}
	}
	inBubble(t, func(t *testing.T) {
		var got []http.Header
		e := newHTTPEdge(t, recording(&got), nil)
		e.client().ask("GET /", "Authorization: Bearer x", "X-Api-Key: y", "Cookie: a=b", "Cookie: c=d")
		want := http.Header{"Authorization": {"Bearer x"}, "X-Api-Key": {"y"}, "Cookie": {"a=b", "c=d"}}
		for name, values := range want {
			if !slices.Equal(got[0][name], values) {
				t.Errorf("%s: %q, want %q", name, got[0][name], values)
			}
		}
		for _, name := range []string{"User-Agent", "Accept-Encoding", "Accept"} {
			if values := got[0][name]; values != nil {
				t.Errorf("%s: %q, which the client did not say", name, values)
			}
		}
	})
}

// What the relay does not call HTML is not called so on its way.
func TestHTTPContentTypeIsTheRelays(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		for _, named := range []string{"", "text/plain"} {
			e := newHTTPEdge(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header()["Content-Type"] = nil
				if named != "" {
					w.Header().Set("Content-Type", named)
				}
				io.WriteString(w, "<html><script>")
			}), nil)
			r, _ := e.client().ask("GET /")
			if got := r.Header["Content-Type"]; named == "" && got != nil || named != "" && !slices.Equal(got, []string{named}) {
				t.Errorf("Content-Type %q, the relay says %q", got, named)
			}
		}
	})
}

// With PROXY the relay's connection is one client's alone, has the header before
// anything else, and carries all of its requests.
func TestHTTPWithPROXY(t *testing.T) {
	for version, versions := range map[string]proxyheader.Versions{"proxy-v1": proxyheader.V1, "proxy-v2": proxyheader.V2} {
		t.Run(version, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				e := newHTTPEdge(t, nil, func(cfg *edgeConfig) { cfg.upstream.ClientAddress = version })
				for i := range 2 {
					addr := netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(10 + i)}), 51000)
					c := e.clientFrom(addr)
					c.send("GET /one", "X-Real-IP: "+liar)
					relay, err := e.relay.Accept()
					if err != nil {
						t.Fatal(err)
					}
					h, rest, err := proxyheader.Read(relay, versions)
					if err != nil || h.Source != addr || h.Destination != edgeAddr {
						t.Errorf("the header says %v to %v, %v", h.Source, h.Destination, err)
					}
					side := newHTTPTester(t, relay)
					side.lines.Reset(io.MultiReader(strings.NewReader(string(rest)), relay))
					for _, path := range []string{"/one", "/two"} {
						r, err := http.ReadRequest(side.lines)
						if err != nil || r.RequestURI != path || r.Header.Get("X-Real-IP") != "" {
							t.Fatalf("%v, %v", r, err)
						}
						mustWrite(t, relay, []byte("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n"+path))
						if _, body := c.answer(); body != path {
							t.Errorf("the answer to %s: %q", path, body)
						}
						if path == "/one" {
							c.send("GET /two")
						}
					}
					c.Close()
					wantEOF(t, relay)
					relay.Close()
				}
			})
		})
	}
}

// A trusted peer's PROXY header names the client, to the relay, the gate and the guard.
func TestHTTPBehindABalancer(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		e := newHTTPEdge(t, telling, func(cfg *edgeConfig) {
			cfg.listener.TrustProxyFrom = []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")}
		})
		balancer := netip.MustParseAddrPort("198.51.100.77:1000")
		for _, client := range []string{"192.0.2.77:5000", "[2001:db8::7]:5000", "[::ffff:192.0.2.78]:5000"} {
			source := netip.MustParseAddrPort(client)
			header, err := proxyheader.AppendV2(nil, proxyheader.Header{Source: source, Destination: edgeAddr}, false)
			if err != nil {
				t.Fatal(err)
			}
			c := e.clientFrom(balancer)
			mustWrite(t, c, header)
			for range 2 {
				_, body := c.ask("GET /", "X-Real-IP: "+liar)
				if want := "for " + source.Addr().Unmap().String() + " with"; !strings.Contains(body, want) {
					t.Errorf("the relay answers %q, want %q", body, want)
				}
			}
			c.Close()
		}
	})
}

var ids = regexp.MustCompile(`^[0-9a-f]{32}-[0-9]+$`)

// The relay, the answer and what the edge answers itself name a request alike,
// and no two requests have one name.
func TestHTTPRequestIDs(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		var got []http.Header
		e := newHTTPEdge(t, recording(&got), nil)
		seen := map[string]bool{}
		for range 2 {
			c := e.client()
			for i := range 3 {
				response, _ := c.ask("GET /", "X-Request-Id: mine")
				id := response.Header.Values(RequestID)
				if len(id) != 1 || !ids.MatchString(id[0]) || seen[id[0]] {
					t.Fatalf("request %d is named %q", i, id)
				}
				seen[id[0]] = true
				if told := got[len(got)-1].Values(RequestID); !slices.Equal(told, id) {
					t.Errorf("the relay is told %q, the client %q", told, id)
				}
			}
			response, body := c.ask("CONNECT example.org:443", "X-Request-Id: mine")
			if id := response.Header.Get(RequestID); response.StatusCode != 405 || !ids.MatchString(id) || !strings.Contains(body, `"requestId":"`+id+`"`) {
				t.Errorf("%s, %q: %s", response.Status, id, body)
			}
		}
	})
}

// A relay that is asked over a connection without an address is told none, and
// nothing that the client says takes its place.
func TestHTTPClientWithoutAddress(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		e := newHTTPEdge(t, telling, nil)
		conn, err := e.front.Dial(context.Background(), netip.AddrPort{})
		if err != nil {
			t.Fatal(err)
		}
		c := newHTTPTester(t, conn)
		defer c.Close()
		response, body := c.ask("GET /", "X-Real-IP: "+liar)
		if response.StatusCode != 200 || !strings.Contains(body, "for  with") {
			t.Errorf("%s: %s", response.Status, body)
		}
	})
}

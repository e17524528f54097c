package proxy

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"testing"
	"time"
)

// Everything that a trusted peer can do wrong with its header.
func TestHeadersThatAreNone(t *testing.T) {
	behind := ways[4]
	for _, row := range []struct {
		name string
		do   func(t *testing.T, raw net.Conn)
		want Reason
		late bool // it ends when the time is over
	}{
		{"nothing", func(*testing.T, net.Conn) {}, ProxyHeader, true},
		{"half of it", func(t *testing.T, raw net.Conn) { mustWrite(t, raw, behind.introduction()[:20]) }, ProxyHeader, true},
		{"another protocol", func(t *testing.T, raw net.Conn) { mustWrite(t, raw, []byte("GET / HTTP/1.1\r\n\r\n")) }, ProxyHeader, false},
		{"an end at once", func(t *testing.T, raw net.Conn) { raw.Close() }, ClientClosed, false},
		{"an end inside", func(t *testing.T, raw net.Conn) { mustWrite(t, raw, []byte("PROXY TC")); raw.Close() }, ProxyHeader, false},
		{"a reset inside", func(t *testing.T, raw net.Conn) { mustWrite(t, raw, []byte("PROXY TC")); party{raw: raw}.reset() }, Reset, false},
	} {
		t.Run(row.name, func(t *testing.T) {
			onWays(t, among(behind), func(t *testing.T, w way) {
				e := newKernelEdge(t, w, func(c *kernelConfig) {
					if row.late {
						c.times = func(q *times) { q.proxyHeader = time.Second }
					}
				})
				raw := e.dial()
				row.do(t, raw)
				e.wantEnd(row.want)
			})
		})
	}
	t.Run("of a peer outside", func(t *testing.T) {
		onWays(t, among(behind), func(t *testing.T, w way) {
			e := newKernelEdge(t, w, func(c *kernelConfig) {
				c.listener.TrustProxyFrom = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
			})
			raw := e.dial()
			raw.Write(w.introduction())
			if _, err := io.ReadAll(raw); err != nil && !errors.Is(err, syscall.ECONNRESET) {
				t.Error(err)
			}
			e.wantEnd(ProxyUntrusted)
		})
	})
}

// A header and what follows it come in any pieces, together with the hello too.
func TestIntroductionsInPieces(t *testing.T) {
	onWays(t, func(w way) bool { return w.in != "" }, func(t *testing.T, w way) {
		e := newKernelEdge(t, w, nil)
		raw := e.dial()
		for _, b := range w.introduction() {
			mustWrite(t, raw, []byte{b})
		}
		client, relay, h := e.pairOf(raw)
		e.wantHeader(h, client)
		mustWrite(t, client, []byte("x"))
		wantRead(t, relay, []byte("x"))
	})
}

// A header comes in one segment with what follows it.
func TestIntroductionsWithMoreBehind(t *testing.T) {
	onWays(t, func(w way) bool { return w.in != "" }, func(t *testing.T, w way) {
		e := newKernelEdge(t, w, nil)
		raw := &joined{Conn: e.dial(), first: w.introduction()}
		if w.tls == "none" {
			mustWrite(t, raw, []byte("x"))
		}
		client, relay, h := e.pairOf(raw)
		e.wantHeader(h, client)
		if w.tls != "none" {
			mustWrite(t, client, []byte("x"))
		}
		wantRead(t, relay, []byte("x"))
	})
}

// A ClientHello comes in any pieces.
func TestHelloInPieces(t *testing.T) {
	onWays(t, func(w way) bool { return w.tls != "none" }, func(t *testing.T, w way) {
		e := newKernelEdge(t, w, nil)
		raw := e.dial()
		mustWrite(t, raw, w.introduction())
		client, relay, _ := e.pairOf(crumbled{raw})
		mustWrite(t, client, []byte("x"))
		wantRead(t, relay, []byte("x"))
	})
}

// crumbled writes each byte by itself.
type crumbled struct{ net.Conn }

func (c crumbled) Write(p []byte) (int, error) {
	for i := range p {
		if n, err := c.Conn.Write(p[i : i+1]); err != nil {
			return i + n, err
		}
	}
	return len(p), nil
}

// A handshake that does not get on ends in its time, and what is no TLS at once.
func TestHandshakesThatAreNone(t *testing.T) {
	first := hello(t, "relay.example.org")
	const life = 300 * time.Millisecond
	for _, row := range []struct {
		name string
		send []byte
		ends string // how the client ends it, if it does
		want Reason
	}{
		{"nothing", nil, "", TLSHandshakeTimeout},
		{"three bytes", first[:3], "", TLSHandshakeTimeout},
		{"most of a hello", first[:len(first)-1], "", TLSHandshakeTimeout},
		{"an end at once", nil, "close", ClientClosed},
		{"a reset inside the hello", first[:100], "reset", Reset},
		{"an end inside the hello", first[:100], "close", ClientClosed},
		{"noise", bytes.Repeat([]byte{0}, 64), "", NotTLS},
		{"another protocol", []byte("SSH-2.0-x\r\n"), "", NotTLS},
		{"plain HTTP", []byte("GET / HTTP/1.1\r\n\r\n"), "", NotTLS},
		{"another name", hello(t, "unknown.example.net"), "", UnknownServerName},
	} {
		t.Run(row.name, func(t *testing.T) {
			suits := func(w way) bool {
				return slices.Contains([]way{ways[1], ways[3], ways[8], ways[11]}, w) &&
					(row.want != UnknownServerName || w.ended()) && // in passthrough it goes to the listener's upstream
					(row.ends != "reset" || w.front != "unix")
			}
			onWays(t, suits, func(t *testing.T, w way) {
				e := newKernelEdge(t, w, func(c *kernelConfig) {
					if row.want == TLSHandshakeTimeout {
						c.times = func(q *times) { q.handshake = life }
					}
				})
				raw := e.dial()
				mustWrite(t, raw, row.send)
				switch row.ends {
				case "close":
					raw.Close()
				case "reset":
					party{raw: raw}.reset()
				default:
					got, err := io.ReadAll(raw)
					if err != nil && !errors.Is(err, syscall.ECONNRESET) {
						t.Error(err)
					}
					if plain := bytes.HasPrefix(got, []byte("HTTP/1.1 400 ")); plain != (row.name == "plain HTTP") && err == nil {
						t.Errorf("it was told %q", got)
					}
				}
				e.wantEnd(row.want)
			})
		})
	}
	t.Run("the server's flight unanswered", func(t *testing.T) {
		onWays(t, func(w way) bool { return w.ended() && w.in == "" }, func(t *testing.T, w way) {
			e := newKernelEdge(t, w, func(c *kernelConfig) {
				c.times = func(q *times) { q.handshake = life }
			})
			raw := e.dial()
			mustWrite(t, raw, first)
			e.wantEnd(TLSHandshakeTimeout)
		})
	})
}

// TLS 1.2 and 1.3 sessions are resumed.
func TestResumption(t *testing.T) {
	onWays(t, way.ended, func(t *testing.T, w way) {
		e := newKernelEdge(t, w, nil)
		cfg := w.clientConfig()
		cfg.ClientSessionCache = oneSession{new(*tls.ClientSessionState)}
		for i := range 3 {
			raw := e.dial()
			mustWrite(t, raw, w.introduction())
			client := e.handshake(raw, cfg)
			relay, _ := e.accept()
			mustWrite(t, client, []byte("x"))
			wantRead(t, relay, []byte("x"))
			mustWrite(t, relay, []byte("y"))
			wantRead(t, client, []byte("y")) // a ticket comes before it
			if got := client.ConnectionState().DidResume; got != (i > 0) {
				t.Errorf("connection %d is resumed: %v", i, got)
			}
			client.Close()
			wantEOF(t, relay)
			relay.Close()
		}
		e.wantEnds(3, ClientClosed)
	})
}

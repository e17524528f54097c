package relaycore_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"relayedge/internal/proxyheader"
	"relayedge/internal/testport"
	"relayedge/relaycore"
	"relayedge/relaycore/client"
	"relayedge/relaycore/wire"
)

// serve runs a relay on loopback until the test's end and returns its address.
func serve(t testing.TB, change func(*relaycore.Config)) (*relaycore.Server, string) {
	t.Helper()
	cfg := relaycore.DefaultConfig()
	if change != nil {
		change(&cfg)
	}
	s, err := relaycore.NewServer(cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	served := make(chan error)
	go func() { served <- s.Serve(ctx, ln) }()
	t.Cleanup(func() {
		stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return s, ln.Addr().String()
}

// frontEnd ends TLS in front of a relay and says in a PROXY v2 header who the
// client is and which TLS session it has.
func frontEnd(t testing.TB, relay string, cfg *tls.Config, binding bool) (url string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), IPAddresses: []net.IP{{127, 0, 0, 1}},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	cfg.Certificates = []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}
	ln, err := tls.Listen("tcp", "127.0.0.1:0", cfg)
	if err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	running.Go(func() {
		for {
			nc, err := ln.Accept()
			if err != nil {
				return
			}
			running.Go(func() {
				defer nc.Close()
				tc := nc.(*tls.Conn)
				if tc.Handshake() != nil {
					return
				}
				h := proxyheader.Header{Version: 2, Source: netip.MustParseAddrPort("192.0.2.10:51000"), Destination: netip.MustParseAddrPort("198.51.100.5:443")}
				state := tc.ConnectionState()
				if material, err := state.ExportKeyingMaterial("EXPORTER-Channel-Binding", nil, 32); err == nil && binding {
					h.TLVs = []proxyheader.TLV{{Type: 0xe4, Value: material}}
				}
				b, err := proxyheader.AppendV2(nil, h, true)
				if err != nil {
					t.Error(err)
					return
				}
				up, err := net.Dial("tcp", relay)
				if err != nil {
					return
				}
				defer up.Close()
				up.Write(b)
				running.Go(func() { io.Copy(up, tc); up.(*net.TCPConn).CloseWrite() })
				io.Copy(tc, up)
			})
		}
	})
	t.Cleanup(func() { ln.Close(); running.Wait() })
	return "wss://" + ln.Addr().String() + "/relay"
}

var insecure = &tls.Config{InsecureSkipVerify: true}

func behindFrontEnd(c *relaycore.Config) { c.ProxyProtocol = true }

func try(t *testing.T, url string, cfg *tls.Config) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var out bytes.Buffer
	err := client.Try(ctx, url, cfg, &out)
	return out.String(), err
}

func TestTry(t *testing.T) {
	steps := []string{"connect: ", "publish: ", "pair: ", "message from A to B: ", "message from B to A: ", "leave: ", "all well in "}
	_, plain := serve(t, nil)
	_, proxied := serve(t, behindFrontEnd)
	for _, tc := range []struct{ name, url, says string }{
		{"without a front end", "ws://" + plain + "/relay", "not bound"},
		{"TLS 1.3", frontEnd(t, proxied, &tls.Config{}, true), "bound to the TLS sessions"},
		{"TLS 1.2 with extended master secret", frontEnd(t, proxied, &tls.Config{MaxVersion: tls.VersionTLS12}, true), "bound to the TLS sessions"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			out, err := try(t, tc.url, insecure)
			if err != nil {
				t.Fatal(err)
			}
			lines := strings.Split(strings.TrimSpace(out), "\n")
			if len(lines) != len(steps) || !strings.Contains(out, tc.says) {
				t.Fatal(out)
			}
			for i, line := range lines {
				if !strings.HasPrefix(line, steps[i]) {
					t.Errorf("%q in place of %q", line, steps[i])
				}
			}
		})
	}
}

// A trial that fails names the step and says what to look at.
func TestTryFails(t *testing.T) {
	_, plain := serve(t, nil)
	_, full := serve(t, func(c *relaycore.Config) {
		c.Limits.MaxConnections, c.Limits.MaxConnectionsPerIP, c.Limits.MaxConnectionsPerIPv648 = 1, 1, 1
	})
	_, proxied := serve(t, behindFrontEnd)
	web := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(web.Close)
	for _, tc := range []struct {
		name, url    string
		tls          *tls.Config
		step, advice string
	}{
		{"nobody listens", fmt.Sprintf("ws://127.0.0.1:%d/relay", testport.Free(t)), nil, "connect", "Nothing listens there"},
		{"another path", "ws://" + plain + "/", nil, "connect", "path of a relay is /relay"},
		{"another server", strings.Replace(web.URL, "http", "ws", 1) + "/relay", nil, "connect", "is a relay behind that address"},
		{"no TLS there", "wss://" + plain + "/relay", insecure, "connect", "No TLS is spoken there"},
		{"unknown certificate", frontEnd(t, proxied, &tls.Config{}, true), nil, "connect", "--insecure"},
		{"the front end sends no binding", frontEnd(t, proxied, &tls.Config{}, false), insecure, "publish", "channel_binding"},
		{"the relay expects no header", frontEnd(t, plain, &tls.Config{}, true), insecure, "connect", "PROXY header"},
		{"a header is expected", "ws://" + proxied + "/relay", nil, "connect", "PROXY header"},
		{"a cap", "ws://" + full + "/relay", nil, "connect", "over a connection cap"},
		{"a scheme", "ftp://" + plain + "/relay", nil, "connect", "begins with ws:// or wss://"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := try(t, tc.url, tc.tls)
			e, ok := errors.AsType[*client.StepError](err)
			if !ok || e.Step != tc.step || !strings.Contains(e.Advice, tc.advice) {
				t.Fatalf("%v", err)
			}
			if !strings.HasPrefix(err.Error(), tc.step+" failed: ") || !strings.Contains(err.Error(), e.Advice) {
				t.Fatalf("%v", err)
			}
		})
	}
}

// A proof that was made for one TLS session is worth nothing on another.
func TestProofOfAnotherTLSSession(t *testing.T) {
	_, relay := serve(t, behindFrontEnd)
	url := frontEnd(t, relay, &tls.Config{}, true)
	s, err := client.Dial(t.Context(), url, client.Options{TLS: insecure})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if s.Welcome().Binding != wire.BindingExporter {
		t.Fatal("the relay asks for no binding")
	}
	key := ed25519.NewKeyFromSeed(make([]byte, 32))
	if err := s.Publish(t.Context(), key, []byte("bundle")); err != nil {
		t.Fatal(err)
	}
	// The same through a relay in the middle, which has a TLS session of its own each way.
	middle := frontEndTo(t, url)
	m, err := client.Dial(t.Context(), middle, client.Options{TLS: insecure})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	err = m.Publish(t.Context(), key, []byte("bundle"))
	if e, ok := errors.AsType[*client.RefusedError](err); !ok || e.Refusal.Fault != wire.FaultKeyAuth {
		t.Fatalf("%v", err)
	}
}

// frontEndTo ends TLS and begins it again towards url, byte for byte.
func frontEndTo(t *testing.T, url string) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	target := strings.TrimSuffix(strings.TrimPrefix(url, "wss://"), "/relay")
	var running sync.WaitGroup
	running.Go(func() {
		for {
			nc, err := ln.Accept()
			if err != nil {
				return
			}
			running.Go(func() {
				defer nc.Close()
				// Its PROXY header comes first and is not passed on.
				_, rest, err := proxyheader.Read(nc, proxyheader.V2)
				if err != nil {
					return
				}
				up, err := tls.Dial("tcp", target, insecure)
				if err != nil {
					return
				}
				defer up.Close()
				up.Write(rest)
				running.Go(func() { io.Copy(up, nc); up.CloseWrite() })
				io.Copy(nc, up)
			})
		}
	})
	t.Cleanup(func() { ln.Close(); running.Wait() })
	return frontEnd(t, ln.Addr().String(), &tls.Config{}, true)
}

func TestSession(t *testing.T) {
	_, addr := serve(t, nil)
	ctx := t.Context()
	s, err := client.Dial(ctx, "ws://"+addr+"/relay", client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if _, ok := s.TLS(); ok {
		t.Error("TLS without TLS")
	}
	key := ed25519.NewKeyFromSeed(make([]byte, 32))
	if err := s.Publish(ctx, key, make([]byte, wire.MaxBundle+1)); err == nil {
		t.Error("a bundle that is too long was sent")
	}
	if err := s.Publish(ctx, key, make([]byte, wire.MaxBundle)); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Ask(ctx, wire.Identity{1}, make([]byte, wire.AskSize+1)); err == nil {
		t.Error("a knock that is too long was sent")
	}
	if _, err := s.Send(ctx, 1, make([]byte, wire.MaxSend-wire.SendHead+1)); err == nil {
		t.Error("a message that is too long was sent")
	}
	id, err := s.Send(ctx, 1, make([]byte, wire.MaxSend-wire.SendHead))
	if err != nil {
		t.Fatal(err)
	}
	f, err := s.Receive(ctx)
	if e, ok := f.(wire.Error); err != nil || !ok || e.Fault != wire.FaultNoCircuit || e.MessageID != id {
		t.Fatalf("%+v, %v", f, err)
	}
	// More ids than one ACK holds.
	if err := s.Ack(ctx, make([]wire.MessageID, wire.MaxAckIDs+1)...); err != nil {
		t.Fatal(err)
	}
	// Frames that come while Publish waits are kept.
	if _, err := s.Ask(ctx, wire.Identity(key.Public().(ed25519.PublicKey)), nil); err != nil {
		t.Fatal(err)
	}
	if err := s.Publish(ctx, key, nil); err != nil {
		t.Fatal(err)
	}
	f, err = s.Receive(ctx)
	if e, ok := f.(wire.Error); err != nil || !ok || e.Fault != wire.FaultTarget {
		t.Fatalf("%+v, %v", f, err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

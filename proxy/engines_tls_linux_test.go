package proxy

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"relayedge/admission"
	"relayedge/proxy/certs"
)

func throughTLS13(w way) bool { return w.tls == "1.3" }

// A client renews keys and has them renewed: both directions go on.
func TestKeyUpdateBothWays(t *testing.T) {
	onWays(t, throughTLS13, func(t *testing.T, w way) {
		e := newKernelEdge(t, w, nil)
		raw := e.dial()
		mustWrite(t, raw, w.introduction())
		r := rekeying(t, raw)
		relay, _ := e.accept()
		const rounds = 50
		for range rounds {
			mustWrite(t, raw, append(r.update(), r.data("question")...))
			wantRead(t, relay, []byte("question"))
			mustWrite(t, relay, []byte("answer"))
			got := make([]byte, 16384)
			if n, err := r.Read(got); err != nil || string(got[:n]) != "answer" {
				t.Fatalf("read %q, %v", got[:n], err)
			}
		}
		if n := r.renewed.Load(); n != rounds {
			t.Errorf("the edge has renewed its keys %d times, want %d", n, rounds)
		}
		e.wantOpen()
	})
}

// The answers to KeyUpdates stand between the records of a large transfer, in
// whatever order the edge reads the client and the relay.
func TestKeyUpdateAmidMuch(t *testing.T) {
	const size, rounds = 4 << 20, 200
	onWays(t, throughTLS13, func(t *testing.T, w way) {
		e := newKernelEdge(t, w, nil)
		raw := e.dial()
		mustWrite(t, raw, w.introduction())
		r := rekeying(t, raw)
		relay, _ := e.accept()
		together(
			func() {
				io.CopyN(relay, rand.NewChaCha8([32]byte{1}), size)
				relay.(unshifted).CloseWrite()
			},
			func() {
				for range rounds {
					if _, err := raw.Write(append(r.update(), r.data("x")...)); err != nil {
						t.Error(err)
					}
				}
			},
			func() {
				if n, err := io.CopyN(io.Discard, relay, rounds); err != nil {
					t.Errorf("the relay got %d of %d bytes, %v", n, rounds, err)
				}
			},
			func() {
				got, want := sha256.New(), sha256.New()
				io.CopyN(want, rand.NewChaCha8([32]byte{1}), size)
				n, err := io.CopyBuffer(got, struct{ io.Reader }{r}, make([]byte, 16384))
				if n != size || err != nil || !bytes.Equal(got.Sum(nil), want.Sum(nil)) {
					t.Errorf("the client got %d of %d bytes, or others: %v", n, size, err)
				}
			},
		)
		mustWrite(t, raw, r.record([]byte{1, 0}, 21)) // close_notify
		e.wantEnd(UpstreamClosed)
	})
}

// peerProgram is the path of a program that is not ours. A test that needs one is
// skipped where it is not installed, and fails instead with RELAYEDGE_REQUIRE_PEERS=1.
func peerProgram(t *testing.T, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err == nil {
		return path
	}
	if os.Getenv("RELAYEDGE_REQUIRE_PEERS") == "1" {
		t.Fatalf("%s is missing, and RELAYEDGE_REQUIRE_PEERS=1 asks for it", name)
	}
	t.Skipf("%s is missing", name)
	return ""
}

// OpenSSL's client that asks to negotiate anew is refused, and gone.
func TestRenegotiationIsRefused(t *testing.T) {
	openssl := peerProgram(t, "openssl")
	onWays(t, func(w way) bool { return w.tls == "1.2" && w.in == "" }, func(t *testing.T, w way) {
		e := newKernelEdge(t, w, nil)
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		client := exec.CommandContext(ctx, openssl, "s_client", "-tls1_2", "-servername", "relay.example.org", "-connect", e.front.Addr().String())
		var said bytes.Buffer
		client.Stdout, client.Stderr = &said, &said
		commands, err := client.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := client.Start(); err != nil {
			t.Fatal(err)
		}
		relay, _ := e.accept()
		mustWrite(t, commands, []byte("hello\n"))
		wantRead(t, relay, []byte("hello\n"))
		mustWrite(t, commands, []byte("R\n")) // its command to renegotiate
		if n, err := relay.Read(make([]byte, 1)); n != 0 || !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("the relay read %d bytes, %v; want a reset", n, err)
		}
		e.wantEnd(Reset)
		commands.Close()
		client.Wait()
		if !strings.Contains(said.String(), "RENEGOTIATING") || !strings.Contains(said.String(), "alert unexpected message") {
			t.Errorf("openssl said: %s", &said)
		}
	})
}

// A CA's validation gets in while the caps are full, and no relay hears of it.
func TestValidationOverKernelSockets(t *testing.T) {
	onWays(t, way.ended, func(t *testing.T, w way) {
		store := openCertificates(t)
		var ordered atomic.Bool
		ordered.Store(true)
		e := newKernelEdge(t, w, func(c *kernelConfig) {
			c.limits.MaxConnections, c.limits.MaxHandshakes = 1, 1
			c.OrderOpen = ordered.Load
			c.Certificate = func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
				if certs.Validation(hello) && !ordered.Load() {
					return nil, certs.ErrUnknownName
				}
				return store.Certificate(&tls.ClientHelloInfo{ServerName: hello.ServerName, SupportedProtos: []string{"http/1.1"}})
			}
		})
		client, relay := e.pair()
		validate := func() error {
			raw := e.dial()
			defer raw.Close()
			raw.Write(w.introduction()) // the edge may have closed by then
			cfg := w.clientConfig()
			cfg.NextProtos = []string{certs.ValidationProtocol}
			ca := tls.Client(raw, cfg)
			if err := ca.Handshake(); err != nil {
				return err
			}
			wantEOF(t, ca)
			return nil
		}
		for range 3 {
			if err := validate(); err != nil {
				t.Fatal(err)
			}
		}
		e.wantEnds(3, ClientClosed)
		raw := e.dial()
		raw.Write(w.introduction())
		if err := tls.Client(raw, w.clientConfig()).Handshake(); err == nil {
			t.Error("another client got in")
		}
		ordered.Store(false)
		if err := validate(); err == nil {
			t.Error("a validation got in that nobody ordered")
		}
		waitFor(t, "two were refused", func() bool { return e.ended(admission.MaxConnections) == 2 })
		mustWrite(t, client, []byte("x"))
		wantRead(t, relay, []byte("x"))
	})
}

// While thousands are refused, those who are in are served, and a place that
// comes free is taken.
func TestFloodOfRefused(t *testing.T) {
	for _, with := range []string{"close", "reset", "tls_alert"} {
		t.Run(with, func(t *testing.T) {
			some := []way{ways[1], ways[7], ways[11]}
			if with == "tls_alert" { // which is for those who speak TLS
				some = []way{ways[1], ways[3], ways[11]}
			}
			onWays(t, among(some...), func(t *testing.T, w way) {
				const inside, refused, atOnce = 3, 2000, 16
				e := newKernelEdge(t, w, func(c *kernelConfig) {
					c.limits.MaxConnections, c.limits.MaxHandshakes = inside, inside
					c.listener.RefuseWith = with
				})
				type pair struct{ client, relay party }
				var open []pair
				for range inside {
					client, relay := e.pair()
					open = append(open, pair{client, relay})
				}
				talk := func() {
					for _, p := range open {
						mustWrite(t, p.client, []byte("to the relay"))
						wantRead(t, p.relay, []byte("to the relay"))
						mustWrite(t, p.relay, []byte("to the client"))
						wantRead(t, p.client, []byte("to the client"))
					}
				}
				var flood sync.WaitGroup
				for range atOnce {
					flood.Go(func() {
						for range refused / atOnce {
							raw, err := net.Dial(e.front.Addr().Network(), e.front.Addr().String())
							if err != nil {
								if with != "reset" || !errors.Is(err, syscall.ECONNRESET) {
									t.Error(err)
								}
								continue
							}
							got, err := io.ReadAll(raw)
							if err != nil && !errors.Is(err, syscall.ECONNRESET) || with != "tls_alert" && len(got) != 0 || with == "tls_alert" && err == nil && !bytes.Equal(got, alertAccessDenied) {
								t.Errorf("refused with % x, %v", got, err)
							}
							raw.Close()
						}
					})
				}
				for range 20 {
					talk()
				}
				flood.Wait()
				waitFor(t, "all are refused", func() bool { return e.ended(admission.MaxConnections) == refused })
				talk()
				e.wantEnds(refused, admission.MaxConnections)
				open[0].client.Close()
				open[0].relay.Close()
				waitFor(t, "a place is free", func() bool { return e.server.openByListener()["public"] == inside-1 })
				client, relay := e.pair()
				open[0] = pair{client, relay}
				talk()
			})
		})
	}
}

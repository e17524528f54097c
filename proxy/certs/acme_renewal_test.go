package certs

import (
	"sync"
	"testing"
	"time"

	"relayedge/internal/testca"
)

// Certificates are renewed, and renewed again, while clients connect, and none of
// them notices.
func TestRenewalUnderTraffic(t *testing.T) {
	t.Parallel()
	// Half of its life is for the renewal, on a machine that may be slow.
	s := newSite(t, testca.Options{Validity: 30 * time.Second}, "a.example.org")
	s.start()
	s.certified("a.example.org")
	var clients sync.WaitGroup
	var mu sync.Mutex
	serials := map[string]bool{}
	done := make(chan struct{})
	for range 4 {
		clients.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				state, err := handshake(s.tls.Addr().String(), "a.example.org")
				if err != nil {
					t.Error("a handshake failed:", err)
					return
				}
				leaf := state.PeerCertificates[0]
				if now := time.Now(); now.After(leaf.NotAfter) {
					t.Errorf("served at %v, valid until %v", now, leaf.NotAfter)
					return
				}
				mu.Lock()
				serials[serialOf(leaf)] = true
				mu.Unlock()
				time.Sleep(2 * time.Millisecond) // leave the CPU to the CA
			}
		})
	}
	s.until("two renewals, seen by clients", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(serials) >= 3 || t.Failed()
	})
	close(done)
	clients.Wait()
	s.end()
	if orders, renewed := s.ca.Orders(), int(s.metric("acme_orders_total", "renewed")); orders != renewed+1 {
		t.Errorf("%d orders for %d renewals", orders, renewed)
	}
	if n := s.ca.Replacing(); n != s.ca.Orders()-1 {
		t.Errorf("%d of %d orders said what they replace", n, s.ca.Orders())
	}
	s.expect("INFO", "certificate renewed", "domain=a.example.org", "next_renewal=")
}

// Another process of the same storage has renewed: its certificate is taken.
func TestTwoProcessesOfOneStorage(t *testing.T) {
	t.Parallel()
	s := newSite(t, testca.Options{}, "a.example.org")
	s.start()
	other := mustOpen(t, Config{ACME: s.cfg}, quiet)
	done := make(chan struct{})
	go func() {
		defer close(done)
		other.Watch(t.Context())
	}()
	s.certified("a.example.org")
	s.until("the other's certificate", func() bool {
		_, err := other.Certificate(helloFor(0x0304, "a.example.org", 0x0403))
		return err == nil
	})
	if n := s.ca.Orders(); n != 1 {
		t.Errorf("%d orders by two processes", n)
	}
}

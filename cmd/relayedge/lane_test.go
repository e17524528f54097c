package main_test

import (
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"relayedge/internal/testca"
	"relayedge/internal/testport"
)

// A CA's validation gets in while the global cap is full, and while the CA's own
// address is at its cap, by a socket or behind a load balancer; a flood that tries
// the same way in at the same time does not.
func TestValidationWhileTheCapsAreFull(t *testing.T) {
	const fromCA, fromFlood = "127.0.0.1", "127.0.0.2"
	for _, tt := range []struct {
		name, limits, reason string
		balanced             bool
		holders              []string
	}{
		{"max_connections", "{max_connections: 3, max_connections_per_ip: 0, max_connections_per_ipv6_48: 0, connection_rate_per_ip: 0}", "max_connections", false, []string{"127.0.0.3", "127.0.0.4", "127.0.0.5"}},
		{"per_ip_cap", "{max_connections_per_ip: 1, connection_rate_per_ip: 0}", "per_ip_cap", false, []string{fromCA, fromFlood}},
		{"per_ip_cap behind a load balancer", "{max_connections_per_ip: 1, connection_rate_per_ip: 0}", "per_ip_cap", true, []string{fromCA, fromFlood}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			public := loopback4(t)
			bind, trust := public, ""
			ca := testca.Start(t, testca.Options{TLSPort: portOf(t, public), HTTPPort: testport.Free(t)})
			if tt.balanced {
				bind, trust = loopback4(t), ", trust_proxy_from: [127.0.0.0/8]"
				forwardWithHeader(t, public, bind)
			}
			release := ca.Hold() // nothing is ordered before the caps are full
			defer release()
			relay, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer relay.Close()
			var reached atomic.Int32
			go func() {
				for {
					conn, err := relay.Accept()
					if err != nil {
						return
					}
					reached.Add(1)
					go func() {
						io.Copy(io.Discard, conn)
						conn.Close()
					}()
				}
			}()
			e := startEdge(t, fmt.Sprintf("listeners: [{name: public, bind: %q%s}]\nupstreams: {relay: {addresses: [%q], health_check_secs: 0, client_address: none}}\nlimits: %s\n", bind, trust, relay.Addr(), tt.limits)+
				acmeAndOwn(ca, usedStorage(t)))
			var open sync.WaitGroup
			var holders []net.Conn
			for _, from := range tt.holders {
				conn, err := dial(t.Context(), from, public, "own.example.org")
				if err != nil {
					t.Fatal(err)
				}
				defer conn.Close()
				holders = append(holders, conn)
			}
			if err := eventually(func() error {
				if n := int(reached.Load()); n != len(holders) {
					return fmt.Errorf("%d connections reach the relay", n)
				}
				return nil
			}); err != nil {
				t.Fatal(err)
			}

			over := make(chan struct{})
			var admitted, tried atomic.Int32
			for i := range 4 {
				open.Go(func() {
					for {
						select {
						case <-over:
							return
						case <-time.After(time.Millisecond): // leave the CPU to the others
						}
						if intrude(fromFlood, public, i%4) {
							admitted.Add(1)
						}
						tried.Add(1)
					}
				})
			}
			release()
			e.shows(t, `relayedge_acme_orders_total{result="obtained"} 1`, `relayedge_acme_orders_total{result="failed"} 0`)
			close(over)
			open.Wait()
			if n := ca.Orders(); n != 1 {
				t.Errorf("%d orders", n)
			}
			if tried.Load() == 0 || admitted.Load() != 0 {
				t.Errorf("%d of %d of the flood got in", admitted.Load(), tried.Load())
			}
			if n := int(reached.Load()); n != len(holders) {
				t.Errorf("%d connections reached the relay, want the %d that hold the caps", n, len(holders))
			}
			e.shows(t, fmt.Sprintf(`relayedge_connections{listener="public"} %d`, len(holders)))
			for _, conn := range holders {
				conn.Close()
			}
			e.shows(t, `relayedge_connections{listener="public"} 0`, `relayedge_handshakes_in_flight 0`)
		})
	}
}

// intrude tries to get in where a validation does, and reports whether it could.
func intrude(from, address string, way int) bool {
	dialer := net.Dialer{Timeout: patience, LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	conn, err := dialer.Dial("tcp", address)
	if err != nil {
		return false
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(200 * time.Millisecond)) // then there is the next one
	var protocols []string
	switch way {
	case 0: // silent
		n, _ := io.Copy(io.Discard, conn)
		return n > 0
	case 1:
		protocols = []string{"http/1.1"}
	case 2:
		protocols = []string{"acme-tls/1", "http/1.1"}
	case 3:
		protocols = []string{"acme-tls/1"} // for a name that no CA validates
	}
	return tls.Client(conn, &tls.Config{InsecureSkipVerify: true, ServerName: "own.example.org", NextProtos: protocols}).Handshake() == nil
}

// acmeAndOwn has a certificate of our own making beside the one that is ordered.
func acmeAndOwn(ca *testca.CA, storage string) string {
	return fmt.Sprintf("certificates: {self_issued: [own.example.org], acme: {domains: [a.example.org], agree_to_terms: true, directory_url: %q, ca_root_file: %q, challenges: [tls-alpn-01], storage: %q}}\nmetrics: {bind_addr: \"127.0.0.1:0\"}\n",
		ca.Directory, ca.RootFile, storage)
}

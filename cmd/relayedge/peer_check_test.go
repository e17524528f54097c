package main_test

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"testing"
)

// HAProxy looks again and again whether the edge lives: it connects, says who it
// is (LOCAL, where it speaks PROXY v2) and closes. That is nobody's fault, and
// counted as none. (A check without either ends before the kernel has a
// connection to hand out.) The time between two checks is also what HAProxy gives
// a check; that there are many soon is for the many servers that the edge is to it.
func TestHAProxyHealthChecksUs(t *testing.T) {
	t.Parallel()
	peer(t, "haproxy")
	for _, row := range []struct{ name, listener, how string }{
		{"LOCAL, plain", "{name: public, bind: \"127.0.0.1:0\", tls: none, trust_proxy_from: [127.0.0.0/8]}", "send-proxy-v2"},
		{"LOCAL before TLS", "{name: public, bind: \"127.0.0.1:0\", trust_proxy_from: [127.0.0.0/8]}", "send-proxy-v2"},
		{"v1, plain", "{name: public, bind: \"127.0.0.1:0\", tls: none, trust_proxy_from: [127.0.0.0/8]}", "send-proxy"},
		{"a TLS handshake", "{name: public, bind: \"127.0.0.1:0\"}", "check-ssl verify none check-sni localhost"},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			e := runEdge(t, "listeners: ["+row.listener+"]\nupstreams: {relay: {addresses: ["+strconv.Quote(answering(t))+"], client_address: none}}\n")
			front := loopback4(t)
			haproxy(t, fmt.Sprintf("listen front\n  mode tcp\n  bind %s\n  server-template edge 20 %s check inter 20s %s\n", front, e.listeners["public"], row.how), front)
			ends := regexp.MustCompile(`(?m)^relayedge_ended_total\{reason="(\w+)"\} ([1-9]\d*)$`)
			if err := eventually(func() error {
				_, body, err := get(e.metrics)
				if err != nil {
					return err
				}
				checked := 0
				for _, m := range ends.FindAllStringSubmatch(body, -1) {
					switch m[1] {
					case "client_closed", "upstream_closed", "reset":
						n, _ := strconv.Atoi(m[2])
						checked += n
					default:
						t.Fatalf("checks end with %s", m[0])
					}
				}
				if checked < 5 {
					return errors.New("fewer than five checks have come")
				}
				return nil
			}); err != nil {
				t.Error(err)
			}
		})
	}
}

package proxy

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"relayedge/internal/logging"
)

// However many paths, hosts, credentials and addresses requests come with, and
// whatever stands in them, the series stay those of the start, nothing is logged at
// the default level, and at the level debug one line of each connection that holds
// nothing of it.
func TestHTTPSeriesAreConstant(t *testing.T) {
	for _, row := range []struct {
		level, format string
		connections   int
	}{{"info", "text", 20_000}, {"debug", "text", 1000}, {"debug", "json", 1000}} {
		if testing.Short() || underRace {
			row.connections = min(row.connections, 500)
		}
		inBubble(t, func(t *testing.T) {
			relay := func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(http.StatusNoContent) }
			e := newHTTPEdge(t, relay, func(c *edgeConfig) { c.limits.ConnectionRatePerIPv648 = 0 }) // no time passes here
			var out bytes.Buffer
			e.server.log, _ = logging.New(logging.Config{Level: row.level, Format: row.format, ClientAddresses: "none"}, &out)
			before := series(e.server)
			address := netip.MustParseAddr("2001:db8::1").As16()
			answered := 0
			for i := range row.connections {
				address[4], address[5], address[6], address[7] = byte(i>>24), byte(i>>16), byte(i>>8), byte(i)
				secret := fmt.Sprintf("private-%d", i)
				asks := []string{
					"GET /" + secret + "?a=%0alevel=ERROR HTTP/1.1\r\nHost: " + secret + "\r\nConnection: close\r\n\r\n",
					"GET / HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + secret + "\"\x85,=\r\nConnection: close\r\n\r\n",
					"GET / HTTP/1.1\r\nHost: x\r\nX-Api-Key: " + secret + "\r\nUser-Agent: \u2028" + secret + "\r\nConnection: close\r\n\r\n",
					strings.ToUpper(secret) + " / HTTP/1.1\r\nHost: x\r\nX-Real-IP: " + secret + "\r\nConnection: close\r\n\r\n",
					"GET / HTTP/1.1\r\nHost: x\r\n" + secret + " : x\r\n\r\n",
					secret + " is no request\r\n\r\n",
				}
				c := e.dial(netip.AddrPortFrom(netip.AddrFrom16(address), 1000))
				mustWrite(t, c, []byte(asks[i%len(asks)]))
				got, _ := io.ReadAll(c)
				if bytes.HasPrefix(got, []byte("HTTP/1.1 204 ")) {
					answered++
				}
				c.Close()
			}
			synctest.Wait()
			if answered < row.connections/2 {
				t.Errorf("%d of %d requests were answered by the relay", answered, row.connections)
			}
			if after := series(e.server); !slices.Equal(before, after) {
				t.Errorf("%d series have become %d", len(before), len(after))
			}
			want := row.connections
			if row.level == "info" {
				want = 0
			}
			if n := strings.Count(out.String(), "\n"); n != want || strings.Contains(strings.ToLower(out.String()), "private") ||
				strings.Contains(out.String(), "2001:db8") || strings.Contains(out.String(), "ERROR") {
				t.Errorf("%d lines, want %d, with nothing of the client's:\n%.2000s", n, want, out.String())
			}
		})
	}
}

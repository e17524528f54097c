package relaycore

import (
	"bytes"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"relayedge/internal/logging"
	"relayedge/internal/proxyheader"
)

// series are the names and labels of all that the relay counts.
func series(s *Server) (all []string) {
	for _, f := range s.Families() {
		f.Read(func(label string, _ float64) { all = append(all, f.Name+"{"+label+"}") })
	}
	return all
}

// However many paths, credentials, protocols, close reasons and addresses clients
// come with, and whatever stands in them, the series stay those of the start. At the
// default level nothing is logged of it; at the level debug there are lines about
// connections, each whole, and none holds anything of what was sent.
func TestSeriesAreConstant(t *testing.T) {
	for _, row := range []struct {
		level, format string
		clients       int
	}{{"info", "text", 100_000}, {"debug", "text", 2000}, {"debug", "json", 2000}} {
		if testing.Short() || raceEnabled {
			row.clients = min(row.clients, 1000)
		}
		bubble(t, proxied, func(t *testing.T, w *world) {
			synctest.Wait() // it has told its limits
			var out bytes.Buffer
			w.s.log, _ = logging.New(logging.Config{Level: row.level, Format: row.format, ClientAddresses: "none"}, &out)
			before := series(w.s)
			address := netip.MustParseAddr("2001:db8::1").As16()
			for i := range row.clients {
				address[4], address[5], address[6], address[7] = byte(i>>24), byte(i>>16), byte(i>>8), byte(i)
				from, err := proxyheader.AppendV2(nil, proxyheader.Header{
					Version: 2, Source: netip.AddrPortFrom(netip.AddrFrom16(address), 1000), Destination: netip.MustParseAddrPort("[2001:db8::2]:443"),
				}, true)
				if err != nil {
					t.Fatal(err)
				}
				secret := fmt.Sprintf("private-%d", i)
				asks := []string{
					"GET /" + secret + "?a=%0alevel=ERROR HTTP/1.1\r\nHost: " + secret + "\r\nConnection: close\r\n\r\n",
					"GET /health HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + secret + "\"\x85,=\r\nConnection: close\r\n\r\n",
					"GET /health HTTP/1.1\r\nHost: x\r\nX-Api-Key: " + secret + "\r\nUser-Agent: \u2028" + secret + "\r\nConnection: close\r\n\r\n",
					secret + " / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
					strings.Replace(upgradeRequest, "Host:", "Origin: https://"+secret+"\r\nX: "+secret+"\r\nHost:", 1) +
						string(closing(3000+i%2000, secret+"\" level=ERROR\n\x1b[31m")),
					upgradeRequest + string(masked(0x82, []byte(secret))),
				}
				c, err := w.ln.Dial(t.Context(), netip.MustParseAddrPort(frontEnd))
				if err != nil {
					t.Fatal(err)
				}
				c.Write(append(from, asks[i%len(asks)]...))
				c.CloseWrite()
				io.Copy(io.Discard, c)
				c.Close()
			}
			synctest.Wait()
			if after := series(w.s); !slices.Equal(before, after) {
				t.Errorf("%d series have become %d", len(before), len(after))
			}
			lines := strings.Count(out.String(), "\n")
			if row.level == "info" && lines != 0 || row.level == "debug" && lines < row.clients/4 {
				t.Errorf("%s: %d lines for %d clients:\n%.1000s", row.level, lines, row.clients, out.String())
			}
			// Each got as far as it was meant to: a page, an upgrade, a frame.
			if n := int(w.s.count.connections.Load()); n != row.clients || w.s.count.decoys.Load() == 0 || w.rejected(ReasonUnknownFrame) == 0 {
				t.Errorf("%d of %d clients were let in, %d asked for a page, %d sent an unknown frame", n, row.clients, w.s.count.decoys.Load(), w.rejected(ReasonUnknownFrame))
			}
			for line := range strings.Lines(out.String()) {
				if strings.Contains(line, "private") || strings.Contains(line, "2001:db8") || strings.Contains(line, "ERROR") ||
					!strings.HasPrefix(line, map[string]string{"text": "time=", "json": `{"time":`}[row.format]) {
					t.Errorf("a line of a client's: %q", line)
				}
			}
		})
	}
}

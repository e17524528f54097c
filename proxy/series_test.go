package proxy

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"relayedge/internal/logging"
	"relayedge/proxy/certs"
)

// recorder is a connection that keeps what is written, and breaks.
type recorder struct {
	net.Conn
	wrote []byte
}

func (r *recorder) Write(p []byte) (int, error) {
	r.wrote = append(r.wrote, p...)
	return 0, errors.New("recorded")
}

// series are the names and labels of all that the edge counts.
func series(s *Server) (all []string) {
	for _, f := range s.Families() {
		if f.Read == nil {
			all = append(all, f.Name)
			continue
		}
		f.Read(func(label string, _ float64) { all = append(all, f.Name+"{"+label+"}") })
	}
	return all
}

// However many names and addresses clients come with, and whatever stands in
// the names, the series stay those of the start, nothing is logged at the
// default level, and at the level debug one line of each that holds nothing of it.
func TestSeriesAreConstant(t *testing.T) {
	const name = "n00000000000.example"
	hello := new(recorder)
	tls.Client(hello, clientTLS(name)).Handshake()
	if bytes.Count(hello.wrote, []byte(name)) != 1 {
		t.Fatal("the hello does not hold the name")
	}
	store, err := certs.Open(certs.Config{SelfIssued: []string{"relay.example.org"}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct {
		level, format string
		connections   int
	}{{"info", "text", 100_000}, {"debug", "text", 2000}, {"debug", "json", 2000}} {
		if testing.Short() || underRace {
			row.connections = min(row.connections, 2000)
		}
		inBubble(t, func(t *testing.T) {
			e := newEdge(t, func(c *edgeConfig) {
				c.listener.TLS = "terminate"
				c.certs = store.Certificate
				c.limits.ConnectionRatePerIPv648 = 0 // no time passes here
			})
			var out bytes.Buffer
			e.server.log, _ = logging.New(logging.Config{Level: row.level, Format: row.format, ClientAddresses: "none"}, &out)
			before := series(e.server)
			address := netip.MustParseAddr("2001:db8::1").As16()
			for i := range row.connections {
				address[4], address[5], address[6], address[7] = byte(i>>24), byte(i>>16), byte(i>>8), byte(i)
				other := fmt.Sprintf("n%011d.example", i)
				switch i % 8 {
				case 1:
					other = "a\"\nlevel=ERROR b=\"c." // what a name may not hold
				case 2:
					other = "\x1b[31m\x85,\u2028 a\x7f,\x00d=.example."[:len(name)]
				}
				c := e.dial(netip.AddrPortFrom(netip.AddrFrom16(address), 1000))
				mustWrite(t, c, bytes.Replace(hello.wrote, []byte(name), []byte(other), 1))
				io.Copy(io.Discard, c)
				c.Close()
			}
			synctest.Wait()
			if after := series(e.server); !slices.Equal(before, after) {
				t.Errorf("%d series have become %d", len(before), len(after))
			}
			if n := e.ended(UnknownServerName) + e.ended(TLSHandshakeFailed); n != row.connections || e.ended(UnknownServerName) < n/2 {
				t.Errorf("%d connections ended, %d of them for their name", n, e.ended(UnknownServerName))
			}
			want := row.connections
			if row.level == "info" {
				want = 0
			}
			if n := strings.Count(out.String(), "\n"); n != want || strings.Contains(out.String(), "example") || strings.Contains(out.String(), "2001:db8") {
				t.Errorf("%d lines, want %d, without name and address:\n%.2000s", n, want, out.String())
			}
		})
	}
}

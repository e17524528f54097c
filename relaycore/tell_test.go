package relaycore

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"relayedge/internal/logging"
	"relayedge/internal/proxyheader"
)

// Lines about a connection name it as the front end does, if that is a name
// that a line can hold, and its client as far as the policy allows.
func TestConnectionsOnTheLog(t *testing.T) {
	const hex = "0123456789abcdef0123456789abcdef"
	for _, row := range []struct {
		name, id, addresses, told string
	}{
		{"the edge's id", hex, "none", "id=" + hex + " "},
		{"with the network", hex, "prefix", "client=192.0.2.0/24 id=" + hex + " "},
		{"with the address", hex, "full", "client=192.0.2.10 id=" + hex + " "},
		{"none", "", "none", ""},
		{"the longest", strings.Repeat("x", maxID), "none", "id=" + strings.Repeat("x", maxID) + " "},
		{"too long", strings.Repeat("x", maxID+1), "none", ""},
		{"a line feed", "a\nlevel=ERROR", "none", ""},
		{"a space", "a b", "none", ""},
		{"ESC", "a\x1b[31m", "none", ""},
		{"DEL", "a\x7f", "none", ""},
		{"bytes that are no text", "a\x85\xff", "none", ""},
		{"beyond ASCII", "ä", "none", ""},
		{"all that may be", "!~", "none", "id=!~ "},
	} {
		t.Run(row.name, func(t *testing.T) {
			bubble(t, proxied, func(t *testing.T, w *world) {
				var out bytes.Buffer
				synctest.Wait() // it has told its limits
				w.s.log, _ = logging.New(logging.Config{Level: "debug", Format: "text", ClientAddresses: row.addresses}, &out)
				var tlvs []proxyheader.TLV
				if row.id != "" {
					tlvs = append(tlvs, proxyheader.TLV{Type: proxyheader.TypeUniqueID, Value: []byte(row.id)})
				}
				p := w.behind("192.0.2.10:51000", tlvs...)
				p.nc.Close()
				synctest.Wait()
				q := w.dial(frontEnd)
				q.write(header(t, "192.0.2.10:51001", tlvs...))
				q.nc.Close()
				synctest.Wait()
				want := fmt.Sprintf("msg=\"session ended\" %sreason=closed after=0s\n", row.told) +
					strings.TrimSuffix(fmt.Sprintf("msg=\"connection ended before a session\" %s", row.told), " ") + "\n"
				var got strings.Builder
				for line := range strings.Lines(out.String()) {
					_, line, _ = strings.Cut(line, "level=DEBUG ")
					got.WriteString(line)
				}
				if got.String() != want {
					t.Errorf("%q\nwant %q", got.String(), want)
				}
			})
		})
	}
}

// What ended a session stands on its line in the word of the metric.
func TestSessionsEndOnTheLog(t *testing.T) {
	for want, e := range map[string]ending{"closed": gone, "idle_timeout": endIdle, "replaced": endReplaced, "writer_stall": endWriterStall, "drain": endDrain} {
		if got := e.told(); got != want {
			t.Errorf("%+v is told as %s, want %s", e, got, want)
		}
	}
}

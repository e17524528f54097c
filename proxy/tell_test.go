package proxy

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"

	"relayedge/internal/logging"
	"relayedge/internal/proxyheader"
)

// Each end is one line of the level debug, with the id that the relay was told
// and the client as far as the policy allows; at the default level there is none.
func TestEndsOnTheLog(t *testing.T) {
	for _, row := range []struct{ level, addresses, client string }{
		{"info", "full", ""},
		{"debug", "none", ""},
		{"debug", "prefix", "192.0.2.0/24"},
		{"debug", "full", "192.0.2.10"},
	} {
		inBubble(t, func(t *testing.T) {
			e := newEdge(t, nil)
			var out bytes.Buffer
			e.server.log, _ = logging.New(logging.Config{Level: row.level, Format: "text", ClientAddresses: row.addresses}, &out)
			client := e.dial(aliceAddr)
			relay, header, _ := e.accept()
			client.Close()
			synctest.Wait()
			relay.Close()
			synctest.Wait()
			id, _ := header.Lookup(proxyheader.TypeUniqueID)
			if _, err := hex.DecodeString(string(id)); err != nil || len(id) != 32 {
				t.Fatalf("UNIQUE_ID is %q", id)
			}
			want := ""
			if row.level == "debug" {
				want = fmt.Sprintf("level=DEBUG msg=\"connection ended\" id=%s listener=public client=%s reason=client_closed after=0s\n", id, row.client)
				if row.client == "" {
					want = strings.Replace(want, "client= ", "", 1)
				}
			}
			if _, got, _ := strings.Cut(out.String(), " "); got != want {
				t.Errorf("%+v: %q, want %q", row, got, want)
			}
		})
	}
}

func TestTellBelowTheLevelIsFree(t *testing.T) {
	s := &session{server: &Server{}, listener: &listener{}, client: netip.MustParseAddrPort("192.0.2.1:1"), id: "id", outcome: Reset}
	s.server.log, _ = logging.New(logging.Config{Level: "info", Format: "text"}, new(bytes.Buffer))
	if n := testing.AllocsPerRun(100, func() {
		s.tell(slog.LevelDebug, "connection ended", slog.String("reason", string(s.outcome)))
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

package proxy

import (
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"relayedge/admission"
)

// A client of a network in deny_file is refused as one of deny is, and the
// networks of deny are still refused beside it.
func TestDenyFileRefuses(t *testing.T) {
	list := filepath.Join(t.TempDir(), "deny.txt")
	var text strings.Builder
	text.WriteString("\uFEFF# refused\r\n\r\n203.0.113.0/24 # all of it\r\n::ffff:198.51.100.7\r\n2001:db8:bad::/48\r\n")
	for i := range 100_000 {
		fmt.Fprintf(&text, "10.%d.%d.%d\n", i>>16, i>>8&255, i&255)
	}
	if err := os.WriteFile(list, []byte(text.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	inBubble(t, func(t *testing.T) {
		e := newEdge(t, func(c *edgeConfig) {
			c.limits.Deny = []netip.Prefix{netip.MustParsePrefix("192.0.2.128/25")}
			c.limits.DenyFile = list
		})
		refused := []string{"203.0.113.9", "::ffff:203.0.113.9", "198.51.100.7", "2001:db8:bad:1::1", "64:ff9b::10.1.134.159", "10.0.0.0", "192.0.2.200"}
		for _, addr := range refused {
			c := e.dial(netip.AddrPortFrom(netip.MustParseAddr(addr), 40000))
			if n, err := c.Read(make([]byte, 1)); n != 0 || err != io.EOF {
				t.Errorf("%s reads %d bytes, %v; want a plain close", addr, n, err)
			}
			c.Close()
		}
		synctest.Wait()
		if n := e.ended(admission.Denied); n != len(refused) {
			t.Errorf("%d were refused as denied, want %d", n, len(refused))
		}
		client, relay := e.pair() // whom no list names
		client.Close()
		relay.Close()
	})
}

// Each call reads the file as it is then, and leaves the list of deny alone.
func TestGateLimitsReadTheFileEachTime(t *testing.T) {
	l := testLimits()
	if got, err := l.GateLimits(); err != nil || len(got.Deny) != 0 {
		t.Errorf("without a file: %v, %v", got.Deny, err)
	}
	l.Deny = make([]netip.Prefix, 1, 8) // with room behind it
	l.Deny[0] = netip.MustParsePrefix("192.0.2.0/24")
	l.DenyFile = filepath.Join(t.TempDir(), "deny.txt")
	for _, text := range []string{"10.0.0.0/8", "11.0.0.0/8\n12.0.0.0/8", ""} {
		if err := os.WriteFile(l.DenyFile, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := l.GateLimits()
		want := []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}
		for network := range strings.FieldsSeq(text) {
			want = append(want, netip.MustParsePrefix(network))
		}
		if err != nil || !slices.Equal(got.Deny, want) {
			t.Errorf("%q: %v, %v", text, got.Deny, err)
		}
		if l.Deny[:2][1].IsValid() {
			t.Error("the policy's own list was written to")
		}
	}
}

func TestDenyFileThatCannotBeUsed(t *testing.T) {
	dir := t.TempDir()
	bad := filepath.Join(dir, "bad.txt")
	if err := os.WriteFile(bad, []byte("10.0.0.0/8\n10.0.0.1/8\n\nfe80::1%eth0\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	closed := filepath.Join(dir, "closed.txt")
	if err := os.WriteFile(closed, nil, 0); err != nil {
		t.Fatal(err)
	}
	none := filepath.Join(dir, "none.txt")
	for file, want := range map[string]string{
		none: none + ": no such file or directory; check the path, or take the key out",
		dir:  dir + " is no regular file; name a file with one network a line",
		bad: bad + `:2: "10.0.0.1/8" has bits beyond its length; write 10.0.0.0/8` + "\n" +
			bad + `:4: "fe80::1%eth0" has a zone, which a network has not; take % and what follows it out`,
		closed: closed + ": permission denied; let the edge's user read it",
	} {
		if file == closed && os.Geteuid() == 0 {
			continue // root may read anything
		}
		l := testLimits()
		l.DenyFile = file
		if _, err := New(Config{Limits: l, Engine: "auto"}); err == nil || err.Error() != "limits.deny_file: "+want {
			t.Errorf("got\n%v\nwant\nlimits.deny_file: %s", err, want)
		}
	}
}

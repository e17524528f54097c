package logging

import (
	"bytes"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
)

func TestClient(t *testing.T) {
	for _, row := range []struct{ addr, prefix, full string }{
		{"192.0.2.77", "192.0.2.0/24", "192.0.2.77"},
		{"::ffff:192.0.2.77", "192.0.2.0/24", "192.0.2.77"},
		{"2001:db8:1:2:3:4:5:6", "2001:db8:1::/48", "2001:db8:1:2:3:4:5:6"},
		{"2001:0db8:0001::0", "2001:db8:1::/48", "2001:db8:1::"},
		{"fe80::1%eth0", "fe80::/48", "fe80::1"},
		{"64:ff9b::192.0.2.77", "64:ff9b::/48", "64:ff9b::c000:24d"},
		{"", "", ""},
	} {
		var addr netip.Addr
		if row.addr != "" {
			addr = netip.MustParseAddr(row.addr)
		}
		for shows, want := range map[string]string{"none": "", "prefix": row.prefix, "full": row.full} {
			for _, f := range formats {
				for where, say := range map[string]func(*slog.Logger){
					"argument": func(l *slog.Logger) { l.Debug("x", Client(addr)) },
					"With":     func(l *slog.Logger) { l.With(Client(addr)).Debug("x") },
				} {
					var out bytes.Buffer
					log, _ := New(Config{Level: "debug", Format: f.name, ClientAddresses: shows}, &out)
					say(log)
					got, err := f.parse(strings.TrimSuffix(out.String(), "\n"))
					if err != nil {
						t.Fatal(err)
					}
					value, there := got["client"]
					if value != want || there != (want != "") {
						t.Errorf("%s of %q by %s, %s: %s", shows, row.addr, where, f.name, out.String())
					}
				}
			}
		}
	}
}

// A member of a group is no way around the policy, and another logger is told nothing.
func TestClientIsNotToldElsewhere(t *testing.T) {
	addr := netip.MustParseAddr("192.0.2.77")
	for _, shows := range []string{"none", "prefix"} {
		var out bytes.Buffer
		log, _ := New(Config{Level: "debug", Format: "text", ClientAddresses: shows}, &out)
		log.WithGroup("g").With(Client(addr)).Debug("x", slog.Group("h", Client(addr)))
		if strings.Contains(out.String(), "192.0.2.77") || strings.Contains(out.String(), "192.0.2.0/24") != (shows == "prefix") {
			t.Errorf("%s: %s", shows, out.String())
		}
	}
	for _, format := range []func(*bytes.Buffer) slog.Handler{
		func(b *bytes.Buffer) slog.Handler { return slog.NewTextHandler(b, nil) },
		func(b *bytes.Buffer) slog.Handler { return slog.NewJSONHandler(b, nil) },
	} {
		var out bytes.Buffer
		slog.New(format(&out)).Info("x", Client(addr))
		if strings.Contains(out.String(), "192") {
			t.Error(out.String())
		}
	}
}

package policy

import "testing"

func TestOrigin(t *testing.T) {
	file := mustLoad(t, edge+"limits:\n  max_connections: 60\n  idle_counts: both\nrelay: {in_process: true, limits: {max_connections_per_ipv6_48: 0}}")
	flags := mustLoad(t, edge)
	flags.FromFlags(map[string]string{"listeners[0]": "--listen"})
	behind := mustLoad(t, "relay: {}")
	for _, row := range []struct {
		p         *Policy
		key, want string
	}{
		{file, "limits.max_connections", "p.yaml:4"},
		{file, "limits.idle_counts", "p.yaml:5"},
		{file, "limits.max_connections_per_ip", "default, held by max_connections"},
		{file, "limits.drain_secs", "default"},
		{file, "relay.limits.max_connections_per_ip", "default, adapted"},
		{file, "relay.limits.max_connections_per_ipv6_48", "p.yaml:6"},
		{file, "relay.proxy_protocol", "default, adapted"},
		{file, "upstreams.relay.addresses", "default, adapted"},
		{flags, "listeners[0].bind", "--listen"},
		{flags, "certificates.self_issued", "run without a file"},
		{flags, "limits.max_connections", "default"},
		{behind, "relay.limits.max_connections_per_ip", "default"},
	} {
		if got := row.p.Origin(row.key); got != row.want {
			t.Errorf("%s comes from %q, want %q", row.key, got, row.want)
		}
	}
}

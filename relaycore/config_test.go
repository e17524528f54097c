package relaycore

import (
	"fmt"
	"maps"
	"math"
	"net/netip"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"relayedge/internal/telemetry"
)

// DefaultConfig is what the tags say.
func TestDefaultsAreThoseOfTheTags(t *testing.T) {
	var walk func(v reflect.Value)
	walk = func(v reflect.Value) {
		for i := range v.NumField() {
			f, tag := v.Field(i), v.Type().Field(i).Tag
			if f.Kind() == reflect.Struct {
				walk(f)
				continue
			}
			got := fmt.Sprint(f.Interface())
			want := strings.ReplaceAll(tag.Get("default"), ", ", " ")
			if want == "max_circuits/64" {
				want = fmt.Sprint(DefaultConfig().Limits.MaxCircuits / 64)
			}
			if got != want {
				t.Errorf("%s is %s, its tag says %s", tag.Get("key"), got, want)
			}
			if tag.Get("doc") == "" {
				t.Errorf("%s says nothing of itself", tag.Get("key"))
			}
		}
	}
	walk(reflect.ValueOf(DefaultConfig()))
	if err := DefaultConfig().Validate(); err != nil {
		t.Error(err)
	}
	_ = telemetry.Config(DefaultConfig().Metrics) // it converts
}

// spec/003, configurable limits: the ranges, as the tags have them and as
// Validate holds Go programs to them.
func TestRanges(t *testing.T) {
	for _, tc := range []struct {
		key       string
		low, high int
		set       func(*Limits, int)
	}{
		{"max_connections", 1, math.MaxInt, func(l *Limits, n int) {
			l.MaxConnections, l.MaxConnectionsPerIP, l.MaxConnectionsPerIPv648 = n, 0, 0
		}},
		{"max_connections_per_ip", 0, 10000, func(l *Limits, n int) { l.MaxConnectionsPerIP = n }},
		{"max_connections_per_ipv6_48", 0, 10000, func(l *Limits, n int) { l.MaxConnectionsPerIPv648 = n }},
		{"rate_limit_bps", 1024, math.MaxInt, func(l *Limits, n int) { l.RateLimitBPS = n }},
		{"max_message_bytes", 65536, 67108864, func(l *Limits, n int) { l.MaxMessageBytes, l.OfflineQueueMaxBytesPerRecipient = n, max(n, 16<<20) }},
		{"offline_queue_max_bytes_per_recipient", 4 << 20, math.MaxInt, func(l *Limits, n int) {
			l.OfflineQueueMaxBytesPerRecipient, l.OfflineQueueMaxTotalBytes = n, max(n, 256<<20)
		}},
		{"offline_queue_max_total_bytes", 16 << 20, math.MaxInt, func(l *Limits, n int) { l.OfflineQueueMaxTotalBytes = n }},
		{"connection_timeout_secs", 60, 86400, func(l *Limits, n int) { l.ConnectionTimeoutSecs = n }},
		{"identification_timeout_secs", 1, 300, func(l *Limits, n int) { l.IdentificationTimeoutSecs = n }},
		{"identification_timeout_secs", 1, 60, func(l *Limits, n int) { l.IdentificationTimeoutSecs, l.ConnectionTimeoutSecs = n, 60 }},
		{"max_pending_circuit_targets", 1, 1000000, func(l *Limits, n int) { pendingAtMost(l, 1); l.MaxPendingCircuitTargets = n }},
		{"pending_identity_reserve_percent", 0, 90, func(l *Limits, n int) { l.PendingIdentityReservePercent = n }},
		{"max_pending_blind_per_connection", 1, 18000, func(l *Limits, n int) { l.MaxPendingBlindPerConnection = n }},
		{"blind_ask_burst", 1, 65536, func(l *Limits, n int) { l.BlindAskBurst = n }},
		{"blind_ask_refill_per_sec", 1, 10000, func(l *Limits, n int) { l.BlindAskRefillPerSec = n }},
		{"max_pending_per_source", 1, 18000, func(l *Limits, n int) { l.MaxPendingPerSource = n }},
		{"max_pending_blind_per_source", 1, 18000, func(l *Limits, n int) { l.MaxPendingBlindPerSource = n }},
		{"max_pending_per_connection", 1, 18000, func(l *Limits, n int) { l.MaxPendingPerConnection = n }},
		{"max_circuits_per_connection", 1, 65536, func(l *Limits, n int) { l.MaxCircuitsPerConnection = n }},
		{"max_circuits", 2, 10000000, func(l *Limits, n int) { l.MaxCircuits, l.MaxCircuitsPerSource = n, 2 }},
		{"max_circuits_per_source", 2, 200000, func(l *Limits, n int) { l.MaxCircuitsPerSource = n }},
		{"max_identities", 1, 10000000, func(l *Limits, n int) { l.MaxIdentities = n }},
		{"identity_budget_bytes", 1 << 20, 64 << 30, func(l *Limits, n int) { l.IdentityBudgetBytes = n }},
		{"identity_ttl_secs", 3600, 31536000, func(l *Limits, n int) { l.IdentityTTLSecs = n }},
		{"outbound_budget_bytes", 16 << 20, 64 << 30, func(l *Limits, n int) { l.OutboundBudgetBytes = n }},
		{"buffer_budget_bytes", 4 << 20, 64 << 30, func(l *Limits, n int) { l.BufferBudgetBytes = n }},
	} {
		try := func(n int) error {
			c := DefaultConfig()
			tc.set(&c.Limits, n)
			return c.Validate()
		}
		for _, n := range []int{tc.low, tc.high} {
			if err := try(n); err != nil {
				t.Errorf("%s: %d: %v", tc.key, n, err)
			}
		}
		bad := []int{tc.low - 1, -1}
		if tc.high < math.MaxInt {
			bad = append(bad, tc.high+1)
		}
		for _, n := range bad {
			err := try(n)
			if err == nil || !strings.Contains(err.Error(), "limits."+tc.key+": "+strconv.Itoa(n)+" is out of range") {
				t.Errorf("%s: %d: %v", tc.key, n, err)
			}
			if _, err := NewServer(func() Config { c := DefaultConfig(); tc.set(&c.Limits, n); return c }(), nil); err == nil {
				t.Errorf("a relay was made with %s: %d", tc.key, n)
			}
		}
		for _, f := range reflect.VisibleFields(reflect.TypeFor[Limits]()) {
			if f.Tag.Get("key") != tc.key {
				continue
			}
			if low := f.Tag.Get("min"); low != strconv.Itoa(tc.low) && (low != "max_message_bytes" || tc.low != 4<<20) &&
				(low != "offline_queue_max_bytes_per_recipient" || tc.low != 16<<20) {
				t.Errorf("%s: the tag says at least %s", tc.key, low)
			}
			switch high := f.Tag.Get("max"); {
			case high == "" && tc.high == math.MaxInt, high == strconv.Itoa(tc.high), tc.high == 60,
				high == "max_connections" && tc.high == 10000, high == "max_pending_circuit_targets" && tc.high == 18000, high == "max_circuits" && tc.high == 200000:
			default:
				t.Errorf("%s: the tag says at most %s", tc.key, high)
			}
		}
	}
}

func TestValidate(t *testing.T) {
	prefixes := func(ps ...string) (out []netip.Prefix) {
		for _, p := range ps {
			out = append(out, netip.MustParsePrefix(p))
		}
		return out
	}
	for _, tc := range []struct {
		key    string // of the fault; empty: none
		change func(*Config)
	}{
		{"", func(c *Config) { c.Bind = "[::1]:0" }},
		{"", func(c *Config) { c.Bind = "127.8.8.8:65535" }},
		{"", func(c *Config) { c.Bind = "localhost:7777" }},
		{"", func(c *Config) { c.Bind, c.AllowPublic = "0.0.0.0:7777", true }},
		{"", func(c *Config) { c.Bind, c.AllowPublic = ":7777", true }},
		{"", func(c *Config) { c.TrustProxyFrom = nil }},
		{"bind", func(c *Config) { c.Bind = "0.0.0.0:7777" }},
		{"bind", func(c *Config) { c.Bind = "[::]:7777" }},
		{"bind", func(c *Config) { c.Bind = ":7777" }},
		{"bind", func(c *Config) { c.Bind = "127.0.0.1" }},
		{"bind", func(c *Config) { c.Bind = "127.0.0.1:65536" }},
		{"bind", func(c *Config) { c.Bind = "127.0.0.1:http" }},
		{"bind", func(c *Config) { c.Bind = "relay.example.org:7777" }},
		{"trust_proxy_from", func(c *Config) { c.ProxyProtocol, c.TrustProxyFrom = true, nil }},
		{"trust_proxy_from[1]", func(c *Config) { c.TrustProxyFrom = prefixes("10.0.0.0/8", "10.0.0.1/8") }},
		{"channel_binding_tlv", func(c *Config) { c.ChannelBindingTLV = 223 }},
		{"channel_binding_tlv", func(c *Config) { c.ChannelBindingTLV = 240 }},
		{"drain_secs", func(c *Config) { c.DrainSecs = -1 }},
		{"drain_secs", func(c *Config) { c.DrainSecs = 3601 }},
		{"limits.max_circuits", func(c *Config) { c.Limits.MaxCircuits, c.Limits.MaxCircuitsPerSource = 1, 2 }},
		{"limits.max_circuits_per_source", func(c *Config) { c.Limits.MaxCircuits = 200 }},
		{"", func(c *Config) { c.OfflineQueue.TTLSecs, c.OfflineQueue.KnockBudgetBytes = 3600, 81920 }},
		{"", func(c *Config) { c.OfflineQueue.TTLSecs, c.OfflineQueue.KnockBudgetBytes = 259200, 1<<30 }},
		{"offline_queue.ttl_secs", func(c *Config) { c.OfflineQueue.TTLSecs = 3599 }},
		{"offline_queue.ttl_secs", func(c *Config) { c.OfflineQueue.TTLSecs = 259201 }},
		{"offline_queue.knock_budget_bytes", func(c *Config) { c.OfflineQueue.KnockBudgetBytes = 81919 }},
		{"offline_queue.knock_budget_bytes", func(c *Config) { c.OfflineQueue.KnockBudgetBytes = 1<<30 + 1 }},
	} {
		c := DefaultConfig()
		tc.change(&c)
		err := c.Validate()
		if tc.key == "" {
			if err != nil {
				t.Error(err)
			}
			continue
		}
		joined, ok := err.(interface{ Unwrap() []error })
		if !ok || len(joined.Unwrap()) != 1 {
			t.Errorf("%s: %v", tc.key, err)
			continue
		}
		if e, ok := joined.Unwrap()[0].(interface{ PolicyKey() string }); !ok || e.PolicyKey() != tc.key {
			t.Errorf("%s: %v", tc.key, err)
		}
	}
}

// Every reason of spec/003's table is there from the start, at 0; reason is the only label.
func TestFamilies(t *testing.T) {
	s, err := NewServer(DefaultConfig(), nil)
	if err != nil {
		t.Fatal(err)
	}
	const table = `max_connections per_ip_cap per_prefix_cap rate_limit oversized_frame handshake_timeout idle_timeout
		identification_timeout auth_rate key_auth pending_targets pending_evicted blind_ask_rate circuit_cap circuit_evicted
		knock_quota knock_evicted queue_overflow slow_consumer writer_stall outbound_shed global_outbound buffer_shed
		task_panic proxy_header proxy_not_loopback unknown_frame`
	want := map[string]float64{}
	for r := range strings.FieldsSeq(table) {
		want[r] = 0
	}
	names := map[string]bool{}
	for _, f := range s.Families() {
		if names[f.Name] || f.Help == "" {
			t.Errorf("%s stands twice or says nothing", f.Name)
		}
		names[f.Name] = true
		got := map[string]float64{}
		f.Read(func(label string, v float64) { got[label] = v })
		if f.Name == "rejections_total" {
			if f.Label != "reason" || !maps.Equal(got, want) {
				t.Errorf("%s: %v", f.Name, got)
			}
			continue
		}
		if v, ok := got[""]; f.Label != "" || len(got) != 1 || !ok || v != 0 {
			t.Errorf("%s: %v", f.Name, got)
		}
		if counter := strings.HasSuffix(f.Name, "_total"); counter != (f.Kind == telemetry.Counter) {
			t.Errorf("%s is of kind %d", f.Name, f.Kind)
		}
	}
	for _, name := range []string{"connections_total", "circuits_total", "relay_bytes_total", "circuits_created_total",
		"blind_asks_accepted_total", "blind_asks_matched_total", "blind_asks_busy_total", "blind_asks_expired_total",
		"blind_asks_refused_unproven_total", "blind_rows_ended_at_publish_total"} {
		if !names[name] {
			t.Errorf("%s is missing of %v", name, slices.Sorted(maps.Keys(names)))
		}
	}
	s.count.reject(ReasonKeyAuth)
	s.Families()[0].Read(func(label string, v float64) {
		if (v == 1) != (label == "key_auth") {
			t.Errorf("%s: %v", label, v)
		}
	})
}

package policy

import (
	"flag"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"

	"relayedge/admission"
	"relayedge/admission/httpguard"
	"relayedge/internal/policyfile"
	"relayedge/internal/telemetry"
	"relayedge/proxy"
	"relayedge/relaycore"
	"relayedge/relaycore/mailbox"
)

var update = flag.Bool("update", false, "write the documents that are made from the code")

const limitsFile = "../../../docs/limits.md"

// metBy says which reason counts that a limit was met, or what happens in place of that.
// A number without an entry is a fault of this table.
var metBy = map[string]string{
	"limits.max_connections":                        "`max_connections`",
	"limits.max_connections_per_ip":                 "`per_ip_cap`",
	"limits.max_connections_per_ipv6_48":            "`per_prefix_cap`",
	"limits.connection_rate_per_ip":                 "`connection_rate`",
	"limits.connection_burst_per_ip":                "`connection_rate`",
	"limits.connection_rate_per_ipv6_48":            "`connection_rate`",
	"limits.connection_burst_per_ipv6_48":           "`connection_rate`",
	"limits.classes[].max_connections_per_ip":       "`per_ip_cap`",
	"limits.classes[].connection_rate_per_ip":       "`connection_rate`",
	"limits.classes[].connection_burst_per_ip":      "`connection_rate`",
	"limits.classes[].max_connections_per_ipv6_48":  "`per_prefix_cap`",
	"limits.classes[].connection_rate_per_ipv6_48":  "`connection_rate`",
	"limits.classes[].connection_burst_per_ipv6_48": "`connection_rate`",
	"limits.deny":                                        "`denied`",
	"limits.deny_file":                                   "`denied`",
	"limits.observe":                                     "counted in `observed_total`, let in",
	"limits.max_handshakes":                              "`handshake_cap`",
	"limits.rate_limit_bps":                              "`rate_limit`, a read pause",
	"limits.rate_limit_burst_bytes":                      "`rate_limit`, a read pause",
	"limits.proxy_header_timeout_secs":                   "`proxy_header`",
	"limits.tls_handshake_timeout_secs":                  "`tls_handshake_timeout`",
	"limits.first_byte_timeout_secs":                     "`first_byte_timeout`",
	"limits.connection_timeout_secs":                     "`idle_timeout`",
	"limits.writer_stall_secs":                           "`writer_stall`",
	"limits.half_close_timeout_secs":                     "`half_close_timeout`",
	"request_limits.limit":                               "answered with 429 (the edge counts request_rate, the relay api_over_request_limit_total)",
	"request_limits.window_secs":                         "answered with 429 (the edge counts request_rate, the relay api_over_request_limit_total)",
	"request_limits.new_credentials_per_host_minute":     "its further credentials count as the host",
	"limits.socket_buffer_bytes":                         "the peer waits",
	"limits.drain_secs":                                  "`drain`",
	"relay.limits.max_connections":                       "`max_connections`",
	"relay.limits.max_connections_per_ip":                "`per_ip_cap`",
	"relay.limits.max_connections_per_ipv6_48":           "`per_prefix_cap`",
	"relay.limits.rate_limit_bps":                        "`rate_limit`, a read pause",
	"relay.limits.max_message_bytes":                     "`oversized_frame`",
	"relay.limits.connection_timeout_secs":               "`idle_timeout`",
	"relay.limits.identification_timeout_secs":           "`identification_timeout`",
	"relay.limits.max_pending_circuit_targets":           "`pending_evicted` where a lighter source asks, else `pending_targets`",
	"relay.limits.pending_identity_reserve_percent":      "`pending_evicted` where a lighter source asks, or a named request is under the reserve, else `pending_targets`",
	"relay.limits.max_pending_per_connection":            "`pending_targets`",
	"relay.limits.max_pending_blind_per_connection":      "`pending_targets`",
	"relay.limits.blind_ask_burst":                       "`blind_ask_rate` and `pending_targets`",
	"relay.limits.blind_ask_refill_per_sec":              "`blind_ask_rate` and `pending_targets`",
	"relay.limits.max_pending_per_source":                "`pending_targets`",
	"relay.limits.max_pending_blind_per_source":          "`pending_targets`",
	"relay.limits.max_circuits_per_connection":           "`circuit_cap`",
	"relay.limits.max_circuits":                          "`circuit_evicted` where a lighter source asks, else `circuit_cap`",
	"relay.limits.max_circuits_per_source":               "`circuit_cap`",
	"relay.limits.offline_queue_max_bytes_per_recipient": "`queue_overflow`",
	"relay.limits.offline_queue_max_total_bytes":         "`queue_overflow`",
	"relay.limits.max_identities":                        "the heaviest source's oldest is forgotten, `identities_evicted_total`",
	"relay.limits.identity_budget_bytes":                 "the heaviest source's oldest is forgotten, `identities_evicted_total`",
	"relay.limits.identity_ttl_secs":                     "it is forgotten",
	"relay.limits.outbound_budget_bytes":                 "`outbound_shed`; sends that find it spent, `global_outbound`",
	"relay.limits.buffer_budget_bytes":                   "`buffer_shed`",
	"relay.limits.max_contacts":                          "the heaviest source's oldest is forgotten",
	"relay.message_limits.sender.minute":                 "429, scope sender",
	"relay.message_limits.sender.hour":                   "429, scope sender",
	"relay.message_limits.sender.day":                    "429, scope sender",
	"relay.message_limits.global.minute":                 "429, scope global",
	"relay.message_limits.global.hour":                   "429, scope global",
	"relay.message_limits.global.day":                    "429, scope global",
	"relay.message_limits.unproven_per_host_minute":      "429, scope host",
	"relay.offline_queue.ttl_secs":                       "it is deleted, `mailbox_expired_total`",
	"relay.offline_queue.knock_budget_bytes":             "`knock_evicted`",
}

// limitsDocument is docs/limits.md.
func limitsDocument(t *testing.T) string {
	var b strings.Builder
	used := map[string]bool{}
	table := func(prefix string, of any) {
		b.WriteString("| key | default | allowed | what it limits | when it is met |\n| --- | --- | --- | --- | --- |\n")
		for _, k := range policyfile.Describe(of) {
			met := metBy[prefix+k.Path]
			used[prefix+k.Path] = true
			if met == "" && k.Type == "integer" {
				t.Errorf("%s%s: what happens when it is met is not said", prefix, k.Path)
			}
			cell := strings.NewReplacer("|", "or").Replace
			fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s |\n", k.Path, cell(defaultCell(k)), cell(k.Range), cell(k.Doc), cell(met))
		}
	}
	b.WriteString(`# Limits

Every limit of the edge and of the relay, as the code has it: a test writes this page and holds it to the code. There is no
"unlimited". A value out of range is refused with its place in the file; 0 is refused unless it says what 0 means. The words in
` + "`code`" + ` under "when it is met" are reasons, as ` + "`relayedge_rejections_total`" + ` and ` + "`relaycore_rejections_total`" + ` count them.

A *source* is an IPv4 address or an IPv6 /48. What is shared by source is off in the relay where all clients look like one: where
` + "`max_connections_per_ip`" + ` is 0 and ` + "`proxy_protocol`" + ` is false. Many users behind one address (carrier NAT) are one source: raise
what is per source for them.

## The edge, under limits:

`)
	table("limits.", proxy.Limits{})
	b.WriteString("\n## HTTP requests to the edge or the relay, under request_limits:\n\n")
	table("request_limits.", httpguard.Config{})
	b.WriteString("\n## The relay, under relay.limits:\n\n")
	table("relay.limits.", relaycore.Limits{})
	b.WriteString("\n## The relay, under relay.offline_queue:\n\n")
	table("relay.offline_queue.", mailbox.Config{})
	b.WriteString("\n## The relay, under relay.message_limits:\n\n")
	table("relay.message_limits.", admission.MessageLimitsConfig{})
	b.WriteString("\n## The relay, fixed\n\n| what | limit | what happens | reason |\n| --- | --- | --- | --- |\n")
	for _, l := range relaycore.FixedLimits() {
		reason := ""
		if l.Reason != "" {
			reason = "`" + string(l.Reason) + "`"
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", l.Limit, l.Value, l.Effect, reason)
	}
	for key := range metBy {
		if !used[key] {
			t.Errorf("%s is no key", key)
		}
	}
	return b.String()
}

func defaultCell(k policyfile.Key) string {
	switch {
	case k.Required:
		return "required"
	case k.Optional:
		return "none"
	}
	return k.Default
}

// docs/limits.md is what the code says. With -update it is written.
func TestLimitsDocument(t *testing.T) {
	want := limitsDocument(t)
	if *update {
		if err := os.WriteFile(limitsFile, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(limitsFile)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Errorf("docs/limits.md is not what the code says; run: go test ./cmd/internal/policy -run TestLimitsDocument -update")
	}
}

// Every reason that the document names is one that is counted.
func TestLimitsDocumentNamesReasons(t *testing.T) {
	edge, err := proxy.New(proxy.Config{Limits: Default().Limits, Engine: "auto", Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	relay, err := relaycore.NewServer(relaycore.DefaultConfig(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	// In a cell, what is in backquotes is a reason, or the whole name of another counter.
	names := func(families []telemetry.Family) (names []string) {
		for _, f := range families {
			names = append(names, f.Name)
			if f.Name == "rejections_total" {
				f.Read(func(reason string, _ float64) { names = append(names, reason) })
			}
		}
		return names
	}
	of := map[bool][]string{false: names(edge.Families()), true: names(relay.Families())}
	check := func(key, cell string, known []string) {
		for i, word := range strings.Split(cell, "`") {
			if i%2 == 1 && !slices.Contains(known, word) {
				t.Errorf("%s: %q is not counted", key, word)
			}
		}
	}
	for key, cell := range metBy {
		check(key, cell, of[strings.HasPrefix(key, "relay.")])
	}
	for _, l := range relaycore.FixedLimits() {
		if l.Reason != "" {
			check(l.Limit, "`"+string(l.Reason)+"`", of[true])
		}
	}
}

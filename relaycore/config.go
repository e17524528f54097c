package relaycore

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"time"

	"relayedge/admission"
	"relayedge/internal/control"
	"relayedge/internal/hostport"
	"relayedge/internal/keyfault"
	"relayedge/internal/telemetry"
	"relayedge/relaycore/mailbox"
	"relayedge/relaycore/push"
)

// Config is the relay section of the policy. The tags are read by the policy file.
type Config struct {
	InProcess             bool                          `key:"in_process" default:"false" doc:"relayedge runs the relay in its own process"`
	Bind                  string                        `key:"bind" default:"127.0.0.1:7777" path:"unix" doc:"host:port on loopback, or unix:/path; port 0 takes a free one"`
	AllowPublic           bool                          `key:"allow_public" default:"false" doc:"allow a bind that is not loopback"`
	ProxyProtocol         bool                          `key:"proxy_protocol" default:"false" doc:"a PROXY v2 header is required before anything else"`
	TrustProxyFrom        []netip.Prefix                `key:"trust_proxy_from" default:"[127.0.0.0/8, ::1/128]" doc:"peers whose PROXY header is believed; all others are refused"`
	RequireChannelBinding bool                          `key:"require_channel_binding" default:"true" doc:"with proxy_protocol: a proof of identity must be bound to the client's TLS session"`
	ChannelBindingTLV     int                           `key:"channel_binding_tlv" default:"228" min:"224" max:"239" doc:"type of the channel binding TLV"`
	DrainSecs             int                           `key:"drain_secs" default:"30" min:"0" max:"3600" doc:"time open sessions get at shutdown; their closes are spread over at most half of it; in process, limits.drain_secs at most"`
	Limits                Limits                        `key:"limits" doc:"the relay's limits"`
	OfflineQueue          mailbox.Config                `key:"offline_queue" doc:"what waits for those who are away"`
	MessageLimits         admission.MessageLimitsConfig `key:"message_limits" doc:"how many messages the HTTP API takes; the environment comes before what is written"`
	Push                  push.Config                   `key:"push" doc:"waking clients that are away"`
	Metrics               MetricsConfig                 `key:"metrics" doc:"the relay's own metrics endpoint, where it runs alone"`
	Control               ControlConfig                 `key:"control" doc:"the relay's own control socket, where it runs alone"`
}

// MetricsConfig is the metrics section of the relay. It has the fields of
// telemetry.Config, to which it converts, and defaults of its own.
type MetricsConfig struct {
	Enabled     bool   `key:"enabled" default:"true" doc:"serve metrics"`
	BindAddr    string `key:"bind_addr" default:"127.0.0.1:9091" doc:"address of the metrics endpoint"`
	AllowPublic bool   `key:"allow_public" default:"false" doc:"allow a bind_addr that is not loopback; the endpoint has no authentication, so firewall it"`
	Namespace   string `key:"namespace" default:"relaycore" doc:"prefix of every metric name"`
}

// Validate holds the section to the rules of every metrics endpoint.
func (m MetricsConfig) Validate() error { return telemetry.Config(m).Validate() }

// ControlConfig is the control section of the relay: control.Config, to which it
// converts, with a default of its own.
type ControlConfig struct {
	Socket string `key:"socket" default:"/run/relaycore/control.sock" path:"socket" doc:"unix socket that relaycore reload speaks to, for the user of the process alone; empty: none"`
}

// Validate holds the section to the rules of every control socket.
func (c ControlConfig) Validate() error { return control.Config(c).Validate() }

// Limits is the limits section of the relay.
type Limits struct {
	MaxConnections                   int `key:"max_connections" default:"10000" min:"1" doc:"open connections in all, counted from accept"`
	MaxConnectionsPerIP              int `key:"max_connections_per_ip" default:"64" min:"0" max:"max_connections" zero:"off" doc:"open connections from one IPv4 address or one IPv6 /64"`
	MaxConnectionsPerIPv648          int `key:"max_connections_per_ipv6_48" default:"256" min:"0" max:"max_connections" zero:"off" doc:"open connections from one IPv6 /48"`
	RateLimitBPS                     int `key:"rate_limit_bps" default:"1048576" min:"1024" doc:"bytes a second that one connection may send, each message counted with 256 more; beyond it the relay reads slower"`
	MaxMessageBytes                  int `key:"max_message_bytes" default:"4194304" min:"65536" max:"67108864" doc:"largest WebSocket message or frame from a client"`
	ConnectionTimeoutSecs            int `key:"connection_timeout_secs" default:"300" min:"60" max:"86400" doc:"time a connection may send no whole message"`
	IdentificationTimeoutSecs        int `key:"identification_timeout_secs" default:"15" min:"1" max:"300" doc:"time a connection may go without proving an identity; at most connection_timeout_secs"`
	MaxPendingCircuitTargets         int `key:"max_pending_circuit_targets" default:"18000" min:"1" max:"1000000" doc:"pending conversation requests in all, named and blinded alike"`
	PendingIdentityReservePercent    int `key:"pending_identity_reserve_percent" default:"25" min:"0" max:"90" zero:"no reserve" doc:"share of max_pending_circuit_targets that is kept for named requests"`
	MaxPendingPerConnection          int `key:"max_pending_per_connection" default:"32" min:"1" max:"max_pending_circuit_targets" doc:"named requests that one connection may have pending"`
	MaxPendingBlindPerConnection     int `key:"max_pending_blind_per_connection" default:"1024" min:"1" max:"max_pending_circuit_targets" doc:"blinded requests that one connection may have pending, about 4 for each contact that is away"`
	BlindAskBurst                    int `key:"blind_ask_burst" default:"64" min:"1" max:"65536" doc:"blinded requests under new tokens that one connection may send at once"`
	BlindAskRefillPerSec             int `key:"blind_ask_refill_per_sec" default:"8" min:"1" max:"10000" doc:"blinded requests under new tokens that one connection may send each second beyond blind_ask_burst"`
	MaxPendingPerSource              int `key:"max_pending_per_source" default:"1024" min:"1" max:"max_pending_circuit_targets" doc:"pending named requests from one IPv4 address or one IPv6 /48"`
	MaxPendingBlindPerSource         int `key:"max_pending_blind_per_source" default:"4096" min:"1" max:"max_pending_circuit_targets" doc:"pending blinded requests from one IPv4 address or one IPv6 /48"`
	MaxCircuitsPerConnection         int `key:"max_circuits_per_connection" default:"256" min:"1" max:"65536" doc:"circuits that one connection has created, and that one identity is a member of across reconnects"`
	MaxCircuits                      int `key:"max_circuits" default:"200000" min:"2" max:"10000000" doc:"circuit routing entries in the whole relay, two a pair"`
	MaxCircuitsPerSource             int `key:"max_circuits_per_source" default:"max_circuits/64" min:"2" max:"max_circuits" doc:"circuit sides of identities that asked from one IPv4 address or one IPv6 /48"`
	OfflineQueueMaxBytesPerRecipient int `key:"offline_queue_max_bytes_per_recipient" default:"16777216" min:"max_message_bytes" doc:"bytes of messages that wait for one recipient, each counted with 768 more"`
	OfflineQueueMaxTotalBytes        int `key:"offline_queue_max_total_bytes" default:"268435456" min:"offline_queue_max_bytes_per_recipient" doc:"bytes of messages that wait for all recipients, each counted with 768 more"`
	MaxIdentities                    int `key:"max_identities" default:"100000" min:"1" max:"10000000" doc:"identities whose bundles are kept, connected or not"`
	IdentityBudgetBytes              int `key:"identity_budget_bytes" default:"268435456" min:"1048576" max:"68719476736" doc:"memory of identities and their bundles"`
	IdentityTTLSecs                  int `key:"identity_ttl_secs" default:"2592000" min:"3600" max:"31536000" doc:"time for which an identity that has left is kept"`
	MaxContacts                      int `key:"max_contacts" default:"200000" min:"1" max:"10000000" doc:"pairs of identities that are remembered to have had a circuit: they are no strangers in each other's mailbox"`
	OutboundBudgetBytes              int `key:"outbound_budget_bytes" default:"1073741824" min:"16777216" max:"68719476736" doc:"memory of what is queued for all connections; beyond it the heaviest connection of the heaviest source is closed"`
	BufferBudgetBytes                int `key:"buffer_budget_bytes" default:"536870912" min:"max_message_bytes" max:"68719476736" doc:"memory of what has come of unfinished messages on all connections; beyond it the heaviest connection of the heaviest source is closed"`
}

// DefaultConfig returns the defaults of the policy file.
func DefaultConfig() Config {
	return Config{
		Bind:                  "127.0.0.1:7777",
		TrustProxyFrom:        []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128")},
		RequireChannelBinding: true,
		ChannelBindingTLV:     228,
		DrainSecs:             30,
		Limits: Limits{
			MaxConnections:                   10000,
			MaxConnectionsPerIP:              64,
			MaxConnectionsPerIPv648:          256,
			RateLimitBPS:                     1 << 20,
			MaxMessageBytes:                  4 << 20,
			ConnectionTimeoutSecs:            300,
			IdentificationTimeoutSecs:        15,
			MaxPendingCircuitTargets:         18000,
			PendingIdentityReservePercent:    25,
			MaxPendingPerConnection:          32,
			MaxPendingBlindPerConnection:     1024,
			BlindAskBurst:                    64,
			BlindAskRefillPerSec:             8,
			MaxPendingPerSource:              1024,
			MaxPendingBlindPerSource:         4096,
			MaxCircuitsPerConnection:         256,
			MaxCircuits:                      200000,
			MaxCircuitsPerSource:             200000 / 64,
			OfflineQueueMaxBytesPerRecipient: 16 << 20,
			OfflineQueueMaxTotalBytes:        256 << 20,
			MaxIdentities:                    100000,
			IdentityBudgetBytes:              256 << 20,
			IdentityTTLSecs:                  30 * 86400,
			MaxContacts:                      200000,
			OutboundBudgetBytes:              1 << 30,
			BufferBudgetBytes:                512 << 20,
		},
		OfflineQueue:  mailbox.DefaultConfig(),
		MessageLimits: admission.DefaultMessageLimits(),
		Push:          push.DefaultConfig(),
		Metrics:       MetricsConfig{Enabled: true, BindAddr: "127.0.0.1:9091", Namespace: "relaycore"},
		Control:       ControlConfig{Socket: "/run/relaycore/control.sock"},
	}
}

// Validate returns an error that names every value that is out of range or
// does not fit another.
func (c Config) Validate() error {
	var errs []error
	fault := func(key, format string, args ...any) {
		errs = append(errs, keyfault.New(key, format, args...))
	}
	if bind, err := hostport.ParseBind(c.Bind); err != nil {
		fault("bind", "%w", err)
	} else if bind.Name != "" {
		fault("bind", "%q: handed-over sockets are for the edge's listeners; write host:port on loopback, or unix:/path", c.Bind)
	} else if !bind.Loopback() && !c.AllowPublic {
		fault("bind", "%q is not loopback, allowed only with allow_public: true", c.Bind)
	}
	if c.ProxyProtocol && len(c.TrustProxyFrom) == 0 {
		fault("trust_proxy_from", "is empty, so nobody could connect; name the front end's networks")
	}
	for i, p := range c.TrustProxyFrom {
		if !p.IsValid() || p != p.Masked() {
			fault(fmt.Sprintf("trust_proxy_from[%d]", i), "%v has bits beyond its length", p)
		}
	}
	checkRange(&errs, "channel_binding_tlv", c.ChannelBindingTLV, 224, 239)
	checkRange(&errs, "drain_secs", c.DrainSecs, 0, 3600)
	c.Limits.check(&errs, "limits.")
	errs = append(errs, keyfault.Below("offline_queue", c.OfflineQueue.Validate())...)
	errs = append(errs, keyfault.Below("message_limits", c.MessageLimits.Validate())...)
	errs = append(errs, keyfault.Below("push", c.Push.Validate())...)
	return errors.Join(errs...)
}

// Validate returns an error that names every limit that is out of range.
func (l Limits) Validate() error {
	var errs []error
	l.check(&errs, "")
	return errors.Join(errs...)
}

func (l Limits) check(errs *[]error, prefix string) {
	within := func(key string, v, low, high int) { checkRange(errs, prefix+key, v, low, high) }
	within("max_connections", l.MaxConnections, 1, math.MaxInt)
	within("max_connections_per_ip", l.MaxConnectionsPerIP, 0, l.MaxConnections)
	within("max_connections_per_ipv6_48", l.MaxConnectionsPerIPv648, 0, l.MaxConnections)
	within("rate_limit_bps", l.RateLimitBPS, 1024, math.MaxInt)
	within("max_message_bytes", l.MaxMessageBytes, 64<<10, 64<<20)
	within("connection_timeout_secs", l.ConnectionTimeoutSecs, 60, 86400)
	within("identification_timeout_secs", l.IdentificationTimeoutSecs, 1, min(300, l.ConnectionTimeoutSecs))
	within("max_pending_circuit_targets", l.MaxPendingCircuitTargets, 1, 1000000)
	within("pending_identity_reserve_percent", l.PendingIdentityReservePercent, 0, 90)
	within("max_pending_per_connection", l.MaxPendingPerConnection, 1, l.MaxPendingCircuitTargets)
	within("max_pending_blind_per_connection", l.MaxPendingBlindPerConnection, 1, l.MaxPendingCircuitTargets)
	within("blind_ask_burst", l.BlindAskBurst, 1, 65536)
	within("blind_ask_refill_per_sec", l.BlindAskRefillPerSec, 1, 10000)
	within("max_pending_per_source", l.MaxPendingPerSource, 1, l.MaxPendingCircuitTargets)
	within("max_pending_blind_per_source", l.MaxPendingBlindPerSource, 1, l.MaxPendingCircuitTargets)
	within("max_circuits_per_connection", l.MaxCircuitsPerConnection, 1, 65536)
	within("max_circuits", l.MaxCircuits, 2, 10000000)
	within("max_circuits_per_source", l.MaxCircuitsPerSource, 2, max(2, l.MaxCircuits))
	within("offline_queue_max_bytes_per_recipient", l.OfflineQueueMaxBytesPerRecipient, l.MaxMessageBytes, math.MaxInt)
	within("offline_queue_max_total_bytes", l.OfflineQueueMaxTotalBytes, l.OfflineQueueMaxBytesPerRecipient, math.MaxInt)
	within("max_identities", l.MaxIdentities, 1, 10000000)
	within("identity_budget_bytes", l.IdentityBudgetBytes, 1<<20, maxBudget)
	within("identity_ttl_secs", l.IdentityTTLSecs, 3600, 365*86400)
	within("max_contacts", l.MaxContacts, 1, 10000000)
	within("outbound_budget_bytes", l.OutboundBudgetBytes, 16<<20, maxBudget)
	within("buffer_budget_bytes", l.BufferBudgetBytes, l.MaxMessageBytes, maxBudget)
}

// maxBudget is 64 GiB, where an int can say that.
const maxBudget = min(64<<30, math.MaxInt)

func checkRange(errs *[]error, key string, v, low, high int) {
	if v >= low && v <= high {
		return
	}
	allowed := fmt.Sprintf("%d to %d", low, high)
	if high == math.MaxInt {
		allowed = fmt.Sprintf("%d or more", low)
	}
	*errs = append(*errs, keyfault.New(key, "%d is out of range, allowed is %s", v, allowed))
}

func secs(n int) time.Duration { return time.Duration(n) * time.Second }

package relaycore

import (
	"sync/atomic"

	"relayedge/admission"
)

// Reason says why something was refused or ended. The list is closed: metric,
// close frame and test use it alike, and dashboards rely on all of them, those
// included whose limit is not in use.
type Reason = admission.Reason

// The relay's reasons, as relaycore_rejections_total counts them; what each
// means stands in spec/003's table.
const (
	ReasonMaxConnections          = admission.MaxConnections
	ReasonPerIPCap                = admission.PerIPCap
	ReasonPerPrefixCap            = admission.PerPrefixCap
	ReasonRateLimit        Reason = "rate_limit" // read pauses
	ReasonOversizedFrame   Reason = "oversized_frame"
	ReasonHandshakeTimeout Reason = "handshake_timeout"
	ReasonIdleTimeout      Reason = "idle_timeout"
	ReasonIdentification   Reason = "identification_timeout"
	ReasonAuthRate         Reason = "auth_rate"
	ReasonKeyAuth          Reason = "key_auth"
	ReasonPendingTargets   Reason = "pending_targets"
	ReasonPendingEvicted   Reason = "pending_evicted"
	ReasonBlindAskRate     Reason = "blind_ask_rate"
	ReasonCircuitCap       Reason = "circuit_cap"
	ReasonCircuitEvicted   Reason = "circuit_evicted"
	ReasonKnockQuota       Reason = "knock_quota"
	ReasonKnockEvicted     Reason = "knock_evicted"
	ReasonQueueOverflow    Reason = "queue_overflow"
	ReasonSlowConsumer     Reason = "slow_consumer"
	ReasonWriterStall      Reason = "writer_stall"
	ReasonOutboundShed     Reason = "outbound_shed"
	ReasonGlobalOutbound   Reason = "global_outbound"
	ReasonBufferShed       Reason = "buffer_shed"
	ReasonTaskPanic        Reason = "task_panic"
	ReasonProxyHeader      Reason = "proxy_header"
	ReasonProxyNotLoopback Reason = "proxy_not_loopback"
	ReasonUnknownFrame     Reason = "unknown_frame"
)

// reasons is every reason, in the order of spec/003's table.
var reasons = []Reason{
	ReasonMaxConnections, ReasonPerIPCap, ReasonPerPrefixCap, ReasonRateLimit, ReasonOversizedFrame,
	ReasonHandshakeTimeout, ReasonIdleTimeout, ReasonIdentification, ReasonAuthRate, ReasonKeyAuth,
	ReasonPendingTargets, ReasonPendingEvicted, ReasonBlindAskRate, ReasonCircuitCap, ReasonCircuitEvicted,
	ReasonKnockQuota, ReasonKnockEvicted, ReasonQueueOverflow, ReasonSlowConsumer, ReasonWriterStall,
	ReasonOutboundShed, ReasonGlobalOutbound, ReasonBufferShed, ReasonTaskPanic, ReasonProxyHeader,
	ReasonProxyNotLoopback, ReasonUnknownFrame,
}

// counters is what the relay counts.
type counters struct {
	rejections map[Reason]*atomic.Uint64 // static keys: every reason

	connections   atomic.Uint64 // admitted connections
	open          atomic.Int64  // of which open
	circuits      atomic.Uint64 // circuits that were opened
	relayBytes    atomic.Uint64 // bytes of messages queued for a recipient
	relayMessages atomic.Uint64
	decoys        atomic.Uint64 // HTTP requests that were no upgrade
	malformed     atomic.Uint64 // connections closed for bytes that are no WebSocket or no frame

	// Blinded requests, and what became of them.
	blindAccepted       atomic.Uint64 // held
	blindMatched        atomic.Uint64 // matched into a conversation
	blindBusy           atomic.Uint64 // refused: the token was used already
	blindExpired        atomic.Uint64 // expired unmatched
	blindUnproven       atomic.Uint64 // refused: no identity was proved
	blindEndedAtPublish atomic.Uint64 // conversations that ended because a member came back

	identitiesEvicted atomic.Uint64 // identities forgotten for lack of room
	overRequests      atomic.Uint64 // requests that the request limit has refused
}

func (c *counters) init() {
	c.rejections = make(map[Reason]*atomic.Uint64)
	for _, r := range reasons {
		c.rejections[r] = new(atomic.Uint64)
	}
}

// reject counts r. The reasons that are not the relay's (a deny list is the
// edge's) do not occur here.
func (c *counters) reject(r Reason) { c.rejections[r].Add(1) }

package relaycore

import (
	"sync/atomic"

	"relayedge/internal/telemetry"
)

// Families describes what the relay counts. The names stand without the namespace.
func (s *Server) Families() []telemetry.Family {
	counter := func(name, help string, v *atomic.Uint64) telemetry.Family {
		return telemetry.Family{Name: name, Help: help, Kind: telemetry.Counter,
			Read: func(emit func(string, float64)) { emit("", float64(v.Load())) }}
	}
	gauge := func(name, help string, read func() int) telemetry.Family {
		return telemetry.Family{Name: name, Help: help, Kind: telemetry.Gauge,
			Read: func(emit func(string, float64)) { emit("", float64(read())) }}
	}
	c := &s.count
	return []telemetry.Family{
		{
			Name: "rejections_total", Help: "Refusals and forced ends, by reason.",
			Kind: telemetry.Counter, Label: "reason",
			Read: func(emit func(string, float64)) {
				for _, r := range reasons {
					emit(string(r), float64(c.rejections[r].Load()))
				}
			},
		},
		counter("connections_total", "Connections admitted.", &c.connections),
		gauge("connections", "Connections open.", func() int { return int(c.open.Load()) }),
		gauge("identities", "Identities connected.", func() int { return s.dir.stats().connected }),
		gauge("pending_requests", "Conversation requests pending.", func() int { return s.dir.stats().pending }),
		counter("circuits_total", "Circuits opened.", &c.circuits),
		counter("circuits_created_total", "Always 0; circuits_total counts.", new(atomic.Uint64)),
		gauge("circuits", "Circuits open.", func() int { return s.dir.stats().circuits }),
		counter("relay_messages_total", "Messages queued for a recipient.", &c.relayMessages),
		counter("relay_bytes_total", "Bytes of messages queued for a recipient.", &c.relayBytes),
		gauge("outbound_bytes", "Memory of what is queued for connections.", func() int { return int(s.outboundBudget.counts.Load()) }),
		gauge("buffer_bytes", "Memory of what has come of unfinished messages.", func() int { return int(s.bufferBudget.counts.Load()) }),
		counter("decoy_answers_total", "HTTP requests that were no upgrade.", &c.decoys),
		counter("malformed_total", "Connections closed for bytes that are no WebSocket frame or no frame of the relay.", &c.malformed),
		counter("blind_asks_accepted_total", "Blinded requests held.", &c.blindAccepted),
		counter("blind_asks_matched_total", "Blinded requests matched into a conversation.", &c.blindMatched),
		counter("blind_asks_busy_total", "Blinded requests refused because their token was used already.", &c.blindBusy),
		counter("blind_asks_expired_total", "Blinded requests expired unmatched.", &c.blindExpired),
		counter("blind_asks_refused_unproven_total", "Blinded requests from connections that had not proved an identity.", &c.blindUnproven),
		counter("blind_rows_ended_at_publish_total", "Blinded conversations ended because a member came back on a new connection.", &c.blindEndedAtPublish),
		gauge("knocks", "Message requests that wait for their targets.", func() int { return s.dir.stats().knocks }),
		gauge("askers", "Identities whose message requests of the last 24 hours are counted.", func() int { return s.dir.stats().askers }),
		gauge("stored_identities", "Identities whose bundles are kept.", func() int { return s.dir.stats().identities }),
		counter("identities_evicted_total", "Identities forgotten for lack of room.", &c.identitiesEvicted),
	}
}

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
		gauge("identities", "Identities connected.", func() int { return s.dir.stats().identities }),
		gauge("pending_requests", "Conversation requests pending.", func() int { return s.dir.stats().pending }),
		counter("circuits_total", "Circuits opened.", &c.circuits),
		gauge("circuits", "Circuits open.", func() int { return s.dir.stats().circuits }),
		counter("relay_messages_total", "Messages queued for a recipient.", &c.relayMessages),
		counter("relay_bytes_total", "Bytes of messages queued for a recipient.", &c.relayBytes),
		gauge("outbound_bytes", "Memory of what is queued for connections.", func() int { return int(s.outboundBudget.held.Load()) }),
		gauge("buffer_bytes", "Memory of what has come of unfinished messages.", func() int { return int(s.bufferBudget.held.Load()) }),
		counter("decoy_answers_total", "HTTP requests that were no upgrade.", &c.decoys),
		counter("malformed_total", "Connections closed for bytes that are no WebSocket frame or no frame of the relay.", &c.malformed),
		counter("blind_asks_refused_unproven_total", "Blinded requests from connections that had not proved an identity.", &c.blindUnproven),
	}
}

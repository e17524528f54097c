package relaycore

import (
	"sync/atomic"
	"time"

	"relayedge/internal/telemetry"
	"relayedge/relaycore/mailbox"
	"relayedge/relaycore/push"
)

// Families describes what the relay counts. The names stand without the namespace.
func (s *Server) Families() []telemetry.Family {
	counter := func(name, help string, v *atomic.Uint64) telemetry.Family {
		return telemetry.Family{Name: name, Help: help, Kind: telemetry.Counter,
			Read: func(emit func(string, float64)) { emit("", float64(v.Load())) }}
	}
	counterOf := func(name, help string, read func() uint64) telemetry.Family {
		return telemetry.Family{Name: name, Help: help, Kind: telemetry.Counter,
			Read: func(emit func(string, float64)) { emit("", float64(read())) }}
	}
	gauge := func(name, help string, read func() int) telemetry.Family {
		return telemetry.Family{Name: name, Help: help, Kind: telemetry.Gauge,
			Read: func(emit func(string, float64)) { emit("", float64(read())) }}
	}
	mail := func(name, help string, kind telemetry.Kind, read func(mailbox.Stats) uint64) telemetry.Family {
		return telemetry.Family{Name: name, Help: help, Kind: kind,
			Read: func(emit func(string, float64)) { emit("", float64(read(s.mail.stats(time.Now())))) }}
	}
	pushed := func(name, help string, kind telemetry.Kind, read func(push.Counts) uint64) telemetry.Family {
		return telemetry.Family{Name: name, Help: help, Kind: kind,
			Read: func(emit func(string, float64)) { emit("", float64(read(s.push.Stats()))) }}
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
		gauge("contacts", "Pairs of identities that are remembered to have had a circuit.", func() int { return s.dir.stats().contacts }),
		counter("api_requests_total", "Requests to the HTTP API.", &s.api.Counts.Requests),
		counter("api_messages_total", "Messages that the HTTP API has accepted.", &s.api.Counts.Accepted),
		counter("api_replays_total", "Answers of the HTTP API that were given again.", &s.api.Counts.Replayed),
		counter("api_limited_total", "Requests to the HTTP API that a message limit has refused.", &s.api.Counts.Limited),
		counter("api_unproven_total", "Requests to the HTTP API whose signature or nonce did not hold.", &s.api.Counts.Unproven),
		counter("api_over_request_limit_total", "Requests that the request limit has refused.", &c.overRequests),
		gauge("api_answers", "Answers of the HTTP API that are kept for those who ask again.", func() int { n, _ := s.api.Kept(); return n }),
		pushed("push_registrations", "Push endpoints that are kept.", telemetry.Gauge, func(c push.Counts) uint64 { return uint64(c.Registrations) }),
		pushed("push_evicted_total", "Push endpoints forgotten for lack of room.", telemetry.Counter, func(c push.Counts) uint64 { return c.Evicted }),
		pushed("push_woken_total", "Wake-ups that a push service took.", telemetry.Counter, func(c push.Counts) uint64 { return c.Outcomes[push.Woken] }),
		pushed("push_gone_total", "Push endpoints forgotten because their service does not know them.", telemetry.Counter, func(c push.Counts) uint64 { return c.Outcomes[push.Gone] }),
		pushed("push_failed_total", "Wake-ups that a push service refused, did not answer, or had no public address for.", telemetry.Counter, func(c push.Counts) uint64 {
			return c.Outcomes[push.Refused] + c.Outcomes[push.Failed] + c.Outcomes[push.Forbidden]
		}),
		pushed("push_skipped_total", "Wake-ups skipped because a budget was spent or a push service wanted to be left alone.", telemetry.Counter, func(c push.Counts) uint64 {
			return c.Outcomes[push.Spent] + c.Outcomes[push.Quiet]
		}),
		mail("mailbox_messages", "Messages that wait for their recipients.", telemetry.Gauge, func(st mailbox.Stats) uint64 { return uint64(st.Messages) }),
		mail("mailbox_bytes", "Bytes that are charged for them.", telemetry.Gauge, func(st mailbox.Stats) uint64 { return uint64(st.Bytes) }),
		mail("mailbox_recipients", "Identities that messages wait for.", telemetry.Gauge, func(st mailbox.Stats) uint64 { return uint64(st.Recipients) }),
		mail("mailbox_in_flight", "Messages that were handed to connections and are not acknowledged.", telemetry.Gauge, func(st mailbox.Stats) uint64 { return uint64(st.InFlight) }),
		mail("mailbox_held_total", "Messages that were taken into the mailbox.", telemetry.Counter, func(st mailbox.Stats) uint64 { return st.Put }),
		mail("mailbox_acknowledged_total", "Messages of the mailbox that their recipients have.", telemetry.Counter, func(st mailbox.Stats) uint64 { return st.Acked }),
		mail("mailbox_expired_total", "Messages of the mailbox that nobody has fetched in time.", telemetry.Counter, func(st mailbox.Stats) uint64 { return st.Expired }),
		mail("mailbox_damaged_total", "Messages of the mailbox file that could not be read back.", telemetry.Counter, func(st mailbox.Stats) uint64 { return st.Damaged }),
		counterOf("mailbox_faults_total", "Writes of the mailbox file that failed.", s.mail.faults),
	}
}

package relaycore

import (
	"fmt"
	"time"

	"relayedge/relaycore/api"
	"relayedge/relaycore/mailbox"
	"relayedge/relaycore/websocket"
	"relayedge/relaycore/wire"
)

// FixedLimit is a limit that cannot be configured, for documents.
type FixedLimit struct {
	Limit  string // what is limited
	Value  string
	Effect string // what happens there
	Reason Reason // counted; empty: nothing is
}

// FixedLimits returns every limit of the relay that cannot be configured, with
// the values in force.
func FixedLimits() []FixedLimit {
	times := func(d time.Duration) string {
		if d >= time.Hour && d%time.Hour == 0 {
			return fmt.Sprintf("%d h", d/time.Hour)
		}
		if d%time.Minute == 0 {
			return fmt.Sprintf("%d min", d/time.Minute)
		}
		return fmt.Sprintf("%v s", d.Seconds())
	}
	return []FixedLimit{
		{"Outbound queue of a connection", fmt.Sprintf("%d messages and %d MiB", queueMessages, queueBytes>>20), "the sender waits; the relay's own messages cannot, and disconnect the recipient", ReasonSlowConsumer},
		{"Wait for room in a recipient's queue", times(queueWait), "the recipient is disconnected as stuck", ReasonSlowConsumer},
		{"Writer stall", times(writerStall), "nothing was written while bytes waited: the connection is closed", ReasonWriterStall},
		{"PROXY header", times(proxyHeaderTime) + " from accept", "the connection is closed", ReasonProxyHeader},
		{"Request head", fmt.Sprintf("%d bytes, %s from the PROXY header", websocket.MaxHead, times(headTime)), "431 or 408, and the connection is closed", ReasonHandshakeTimeout},
		{"Upgrade", times(upgradeTime) + " from the PROXY header", "the connection is closed", ReasonHandshakeTimeout},
		{"Hellos and publishes of a connection", fmt.Sprintf("%d, then one every %s", authRate.Burst, times(authRate.Per)), "the connection is closed", ReasonAuthRate},
		{"Longest message before PUBLISH has succeeded", fmt.Sprintf("%d bytes", wire.MaxPublish), "the connection is closed", ReasonOversizedFrame},
		{"Cost of a message in the byte bucket", fmt.Sprintf("its length and %d bytes", messageOverhead), "the bucket holds the larger of rate_limit_bps and max_message_bytes; beyond it the relay reads slower", ReasonRateLimit},
		{"Longest frame that the relay sends", fmt.Sprintf("%d bytes", wire.MaxServerFrame), "a SEND is at most 4 MiB long", ""},
		{"Pings of the relay", fmt.Sprintf("every %s to %s", times(pingMin), times(pingMax)), "", ""},
		{"Pong", times(pongLate) + " from the end of its ping's write", "the connection is closed", ReasonIdleTimeout},
		{"Messages that wait for one recipient", fmt.Sprint(mailbox.MaxMessages), "the sender is told to come again", ReasonQueueOverflow},
		{"Steady-size messages that wait for one recipient", fmt.Sprintf("%d, of %d bytes each", mailbox.MaxSteady, mailbox.SteadySize), "the sender is told to come again", ReasonQueueOverflow},
		{"Strangers in one recipient's mailbox", fmt.Sprintf("1/%d of its messages and bytes, one source 1/%d", mailbox.StrangersPart, mailbox.StrangerPart), "the sender is told to come again", ReasonQueueOverflow},
		{"Messages of one source in all mailboxes", fmt.Sprintf("1/%d of offline_queue_max_total_bytes or one full mailbox, and never more than is left", mailbox.SourcePart), "the sender is told to come again", ReasonQueueOverflow},
		{"Messages tracked for delivery", fmt.Sprint(mailbox.MaxTracked), "what waits for connected recipients is handed out later", ""},
		{"Life of a request", times(requestLife), "it expires; asking again does not extend it", ""},
		{"Life of a blinded conversation that a member has left", times(blindLinger), "who is left is told that it is closed", ""},
		{"Knocks that wait for one target", fmt.Sprint(knocksPerTarget), "the oldest of the source that has the most there makes room", ReasonKnockEvicted},
		{"Knocks of one pair", "1", "a newer one takes the older one's place", ""},
		{"New knocks of one asker", fmt.Sprintf("%d in any %s", knocksPerAsker, times(askerWindow)), "the request waits without its knock", ReasonKnockQuota},
		{"Knocks of one source", fmt.Sprintf("1/%d of knock_budget_bytes", sourceShare), "its own oldest makes room", ReasonKnockEvicted},
		{"Askers that are remembered", fmt.Sprintf("%d, of one source 1/%d", maxAskers, sourceShare), "the oldest of a heavier source makes room; where there is none, the request waits without its knock", ReasonKnockQuota},
		{"Bundle of an identity", fmt.Sprintf("%d bytes", wire.MaxBundle), "the connection is closed", ""},
		{"Message ids in one ACK", fmt.Sprint(wire.MaxAckIDs), "the connection is closed", ""},
		{"Body of a request to the HTTP API", fmt.Sprintf("%d bytes with a message in it, %d without; a message %d, a bundle %d", api.MaxMessageBody, api.MaxOtherBody, wire.MaxBody, wire.MaxBundle), "413", ""},
		{"Request to the HTTP API", times(requestTime) + " for all of it; " + times(pauseTime) + " from an answer to the next one", "the connection is closed", ""},
		{"Answer of the HTTP API", times(replyTime) + " for it to be taken", "the connection is closed", ""},
		{"Messages in one answer", fmt.Sprintf("%d, and %d bytes unless the first is longer", api.FetchMessages, api.FetchBytes), "the rest is for another request", ""},
		{"Age of sent_at", times(api.Freshness) + " either way", "401", ""},
		{"Life of a challenge", times(api.ChallengeLife), "401", ""},
		{"Answers that are kept for who asks again", fmt.Sprintf("%d and %d MiB, %s each", api.MostAnswers, api.AnswerBudget>>20, times(api.AnswerLife)), "the heaviest source's oldest is forgotten", ""},
		{"Ended sessions that wait for their clients to close", fmt.Sprintf("%d, %s each", maxLingers, times(lastWords)), "others are cut behind their close frame", ""},
	}
}

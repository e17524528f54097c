package policy

import "relayedge/internal/policyfile"

// Where the edge runs the relay too, both drains begin together. The relay's has
// to be over first: its goodbyes go through the edge, which cuts what carries them
// behind its own drain_secs.

const relayDrain = "relay.drain_secs"

func (p *Policy) adaptDrain(doc *policyfile.Document) {
	if p.drainsTooLong(doc) && !doc.Written(relayDrain) {
		p.Relay.DrainSecs = p.Limits.DrainSecs
		p.adapted(relayDrain)
	}
}

func (j *judgement) drains() {
	if j.drainsTooLong(j.doc) {
		j.fault(relayDrain, "%d is longer than limits.drain_secs (%d), when this process's edge begins to close the connections of the relay's sessions; write %d at most, or more there",
			j.Relay.DrainSecs, j.Limits.DrainSecs, j.Limits.DrainSecs)
	}
}

func (p *Policy) drainsTooLong(doc *policyfile.Document) bool {
	return p.Relay.InProcess && p.Relay.DrainSecs > p.Limits.DrainSecs && doc.Clean("limits.drain_secs") && doc.Clean(relayDrain)
}

package policy

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"relayedge/internal/policyfile"
)

// Command is one of those that read the policy.
type Command int

const (
	Edge  Command = iota // relayedge
	Relay                // relaycore
)

func (c Command) String() string { return map[Command]string{Edge: "relayedge", Relay: "relaycore"}[c] }

// Effect is what a command makes of a key that has changed at a reload.
type Effect int

const (
	Unread  Effect = iota // the key is not this command's
	Live                  // it is put in force
	Restart               // the value of the start stays in force until the next one
)

// effects says of every key what the two commands make of a change. A row holds
// for all keys below it that have no row of their own; where those differ, a test
// asks for a row for each. What the edge makes of the relay's keys holds where it
// runs the relay in its process.
var effects = []struct {
	key         string
	edge, relay Effect
}{
	{"listeners", Live, Unread},
	{"certificates", Live, Unread},
	{"certificates.acme", Live, Unread},
	{"certificates.acme.domains", Live, Unread},
	{"certificates.acme.email", Live, Unread},
	{"certificates.acme.agree_to_terms", Live, Unread},
	{"certificates.acme.directory_url", Live, Unread},
	{"certificates.acme.ca_root_file", Live, Unread},
	{"certificates.acme.challenges", Live, Unread},
	{"certificates.acme.http_bind", Restart, Unread},
	{"certificates.acme.storage", Live, Unread},
	{"certificates.acme.eab_key_id", Live, Unread},
	{"certificates.acme.eab_key_file", Live, Unread},
	{"certificates.files", Live, Unread},
	{"certificates.self_issued", Live, Unread},
	{"engine", Restart, Unread},
	{"upstreams", Live, Unread},
	{"limits", Live, Unread},
	{"request_limits", Live, Live},
	{"metrics", Restart, Unread},
	{"control", Restart, Unread},

	{"relay", Live, Live},
	{"relay.in_process", Restart, Restart},
	{"relay.bind", Restart, Restart},
	{"relay.allow_public", Restart, Restart},
	{"relay.proxy_protocol", Restart, Restart},
	{"relay.trust_proxy_from", Live, Live},
	{"relay.require_channel_binding", Restart, Restart},
	{"relay.channel_binding_tlv", Restart, Restart},
	{"relay.drain_secs", Live, Live},
	{"relay.limits", Live, Live},
	{"relay.message_limits", Live, Live},
	{"relay.offline_queue", Live, Live},
	{"relay.offline_queue.ttl_secs", Live, Live},
	{"relay.offline_queue.knock_budget_bytes", Live, Live},
	{"relay.offline_queue.file", Restart, Restart},
	{"relay.offline_queue.key_file", Restart, Restart},
	{"relay.push", Live, Live},
	{"relay.metrics", Unread, Restart},
	{"relay.metrics.enabled", Unread, Restart},
	{"relay.metrics.bind_addr", Unread, Restart},
	{"relay.metrics.allow_public", Unread, Restart},
	{"relay.metrics.namespace", Restart, Restart},
	{"relay.control", Unread, Restart},

	{"redis", Restart, Restart},

	{"log", Live, Live},
	{"log.level", Live, Live},
	{"log.format", Restart, Restart},
	{"log.client_addresses", Restart, Restart},
}

// Effect returns what the command makes of a change of the key, where relayedge
// runs the relay in its process.
func (c Command) Effect(key string) Effect {
	effect, longest := Unread, 0
	for _, row := range effects {
		if len(row.key) > longest && policyfile.Below(key, row.key) {
			longest = len(row.key)
			effect = row.edge
			if c == Relay {
				effect = row.relay
			}
		}
	}
	return effect
}

// reads reports whether a policy's key is the command's business.
func (c Command) reads(p *Policy, key string) bool {
	return c.Effect(key) != Unread && (c == Relay || p.Relay.InProcess || !policyfile.Below(key, "relay") || key == "relay.in_process")
}

// Changes returns what the command puts in force of the changes between the
// policy that is in force and one that was read, and what takes a restart.
func (c Command) Changes(inForce, read *Policy) (live, restart []policyfile.Change) {
	for _, change := range policyfile.Changes(inForce, read) {
		switch {
		case !c.reads(inForce, change.Key):
		case c.Effect(change.Key) == Restart:
			restart = append(restart, change)
		default:
			live = append(live, change)
		}
	}
	return live, restart
}

// Files returns the keys of a policy that name a file which the command reads
// again at a reload, each with the file.
func (c Command) Files(p *Policy) []policyfile.Value {
	return slices.DeleteFunc(policyfile.Files(p), func(f policyfile.Value) bool {
		return !c.reads(p, f.Key) || c.Effect(f.Key) != Live
	})
}

// Next gives a policy that was read the values in force of all keys that take a
// restart. What results is judged as a file that says so would be: keys that only
// fit each other's values are put in force together or not at all.
func (c Command) Next(inForce, read *Policy) (*Policy, error) {
	_, restart := c.Changes(inForce, read)
	if len(restart) == 0 {
		return read, nil
	}
	if inForce.Relay.InProcess != read.Relay.InProcess {
		return nil, errors.New("relay.in_process: takes a restart, and so does all that goes with it; restart to change it")
	}
	next := *read
	policyfile.Keep(inForce, &next, func(key string) bool { return c.reads(inForce, key) && c.Effect(key) == Restart })
	judged := next
	if judged.Redis.URL != "" {
		// What it shows of itself is not all of it, and cannot be read again. The one in
		// force has been judged.
		judged.Redis.URL = "redis://127.0.0.1"
	}
	_, err := LoadBytes("policy", Effective(&judged))
	faults, ok := errors.AsType[policyfile.Faults](err)
	if !ok {
		return &next, err
	}
	var keys []string
	for _, change := range restart {
		keys = append(keys, change.Key)
	}
	var all []error
	for _, f := range faults {
		at := ""
		if origin := read.Origin(f.Key); strings.Contains(origin, ":") {
			at = origin + ": "
		}
		all = append(all, fmt.Errorf("%s%s: %s; this is so because the old value of %s stays in force until a restart: restart to have the file as it is", at, f.Key, f.Problem, strings.Join(keys, ", ")))
	}
	return nil, errors.Join(all...)
}

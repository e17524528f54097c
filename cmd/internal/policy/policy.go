// Package policy is the one file that both commands read: which sections it
// has, what crosses them (judge.go), and what a reload makes of each key
// (reload.go). What a section means, and its ranges, belong to the package that
// owns its config struct; YAML belongs to policyfile.
package policy

import (
	"errors"

	"relayedge/admission/httpguard"
	"relayedge/admission/redisstore"
	"relayedge/internal/control"
	"relayedge/internal/logging"
	"relayedge/internal/policyfile"
	"relayedge/internal/telemetry"
	"relayedge/proxy"
	"relayedge/proxy/certs"
	"relayedge/proxy/upstream"
	"relayedge/relaycore"
)

// Policy is the whole file with its defaults.
type Policy struct {
	Listeners     []proxy.ListenerConfig     `key:"listeners" default:"[]" doc:"where the edge takes connections"`
	Certificates  certs.Config               `key:"certificates" doc:"what tls: terminate serves"`
	Engine        string                     `key:"engine" default:"auto" enum:"auto|loop|stream" doc:"what moves the bytes: an event loop (Linux), or a goroutine for each direction; auto takes the best of this system"`
	Upstreams     map[string]upstream.Config `key:"upstreams" doc:"relays by name; where none is written, there is one named relay with the defaults"`
	Limits        proxy.Limits               `key:"limits" doc:"the edge's limits"`
	RequestLimits httpguard.Config           `key:"request_limits" doc:"how many HTTP requests a credential or a host may make, on every route and before anything authenticates"`
	Metrics       telemetry.Config           `key:"metrics" doc:"the edge's metrics endpoint"`
	Control       control.Config             `key:"control" doc:"the edge's control socket"`
	Relay         relaycore.Config           `key:"relay" doc:"the relay that is shipped with the edge"`
	Redis         redisstore.Config          `key:"redis" doc:"what several processes share; without a url, nothing"`
	Log           logging.Config             `key:"log" doc:"what is logged, on standard error"`

	relayWritten bool
	origins      origins
}

// DefaultUpstream is the name of the upstream that exists where none is written.
const DefaultUpstream = "relay"

// Load reads the policy at path. What is wrong inside the file is a [policyfile.Faults].
func Load(path string) (*Policy, error) {
	p := new(Policy)
	doc, err := policyfile.Read(path, p)
	if err != nil {
		return nil, err
	}
	return p.finish(doc)
}

// LoadBytes reads a policy from memory; faults name it as name, and relative
// paths begin in name's folder.
func LoadBytes(name string, src []byte) (*Policy, error) {
	p := new(Policy)
	return p.finish(policyfile.Parse(name, src, p))
}

// Default returns the policy of an empty file: it listens nowhere.
func Default() *Policy {
	p, err := LoadBytes("defaults", nil)
	if err != nil {
		panic("policy: " + err.Error())
	}
	return p
}

func (p *Policy) finish(doc *policyfile.Document) (*Policy, error) {
	p.relayWritten = doc.Written("relay")
	p.origins.doc = doc
	p.adapt(doc)
	p.judge(doc)
	if err := doc.Err(); err != nil {
		return nil, err
	}
	return p, nil
}

// NeedEdge says what to write if the policy has nothing for relayedge to do.
func (p *Policy) NeedEdge() error {
	if len(p.Listeners) == 0 {
		return errors.New(`listeners: none is written, so relayedge has nowhere to take connections; write at least one, as in listeners: [{name: public, bind: "[::]:443"}]`)
	}
	return nil
}

// NeedRelay says what to write if the policy has no relay for relaycore to run.
func (p *Policy) NeedRelay() error {
	switch {
	case !p.relayWritten:
		return errors.New(`relay: the section is not written, so relaycore has no relay to run; write it, as in relay: {bind: "127.0.0.1:7777"}`)
	case p.Relay.InProcess:
		return errors.New("relay.in_process: is true, so relayedge runs this relay; take it out to run it with relaycore")
	}
	return nil
}

// Effective returns the policy as YAML with every key. It reads back as the same
// policy: a relay that is not written is left out, because writing it would be
// asking for one.
func Effective(p *Policy) []byte {
	if !p.relayWritten {
		return policyfile.Encode(p, "relay")
	}
	return policyfile.Encode(p)
}

// Schema returns the file's JSON Schema.
func Schema() []byte { return policyfile.Schema(Policy{}) }

// Keys describes every key of the file.
func Keys() []policyfile.Key { return policyfile.Describe(Policy{}) }

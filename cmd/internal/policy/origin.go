package policy

import (
	"strings"

	"relayedge/internal/policyfile"
)

// origins is where the values of a policy come from.
type origins struct {
	doc     *policyfile.Document
	adapted map[string]bool
	flags   map[string]string // nil: there is a file

	environment map[string]bool // keys that a variable has the value of
}

func (p *Policy) adapted(key string) {
	if p.origins.adapted == nil {
		p.origins.adapted = make(map[string]bool)
	}
	p.origins.adapted[key] = true
}

// FromFlags says that the policy was made of flags. The map gives, for keys that
// a flag was given for, the flag.
func (p *Policy) FromFlags(flags map[string]string) { p.origins.flags = flags }

// Origin says where the value of a key comes from, in a word or two: the file
// and line that write it ("policy.yaml:12"), the flag ("--listen"), "default",
// a variable ("environment"),
// a default that another key has moved ("default, held by max_connections"), or
// one that the rest of the policy calls for ("default, adapted").
func (p *Policy) Origin(key string) string {
	o := p.origins
	if o.environment[key] {
		return "environment"
	}
	if o.flags != nil && o.doc.Written(key) {
		for at := key; at != ""; at = at[:max(0, strings.LastIndexAny(at, ".["))] {
			if flag, ok := o.flags[at]; ok {
				return flag
			}
		}
		return "run without a file"
	}
	if o.adapted[key] {
		return "default, adapted"
	}
	return o.doc.Origin(key)
}

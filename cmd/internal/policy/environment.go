package policy

import (
	"errors"
	"fmt"
	"strconv"

	"relayedge/admission"
)

// variables are those of the environment that come before what the file says.
var variables = []struct {
	name, key string // the key below relay.message_limits
	value     func(*admission.MessageLimitsConfig) *int
}{
	{"RATE_LIMIT_MINUTE", "sender.minute", func(c *admission.MessageLimitsConfig) *int { return &c.Sender.Minute }},
	{"RATE_LIMIT_HOUR", "sender.hour", func(c *admission.MessageLimitsConfig) *int { return &c.Sender.Hour }},
	{"RATE_LIMIT_DAY", "sender.day", func(c *admission.MessageLimitsConfig) *int { return &c.Sender.Day }},
	{"GLOBAL_RATE_LIMIT_MINUTE", "global.minute", func(c *admission.MessageLimitsConfig) *int { return &c.Global.Minute }},
	{"GLOBAL_RATE_LIMIT_HOUR", "global.hour", func(c *admission.MessageLimitsConfig) *int { return &c.Global.Hour }},
	{"GLOBAL_RATE_LIMIT_DAY", "global.day", func(c *admission.MessageLimitsConfig) *int { return &c.Global.Day }},
}

// TakeEnvironment puts the environment's variables in the place of what the file
// says, if it asks for a relay. Its error names each variable that cannot be
// taken, and what is allowed; then nothing is taken.
func (p *Policy) TakeEnvironment(lookup func(string) (string, bool)) error {
	if !p.relayWritten {
		return nil
	}
	limits, from := p.Relay.MessageLimits, map[string]bool{}
	var faults []error
	for _, v := range variables {
		text, there := lookup(v.name)
		if !there {
			continue
		}
		n, err := strconv.Atoi(text)
		if err != nil || strconv.Itoa(n) != text {
			faults = append(faults, fmt.Errorf("%s: %q is no plain integer; write messages a window, 0 for no limit or -1 to refuse all, or unset the variable", v.name, text))
			continue
		}
		// What the file says is within its range: a fault is this variable's.
		one := p.Relay.MessageLimits
		*v.value(&one) = n
		if err := one.Validate(); err != nil {
			faults = append(faults, fmt.Errorf("%s, which stands for relay.message_limits.%w", v.name, err))
			continue
		}
		*v.value(&limits) = n
		from["relay.message_limits."+v.key] = true
	}
	if len(faults) > 0 {
		return errors.Join(faults...)
	}
	p.Relay.MessageLimits, p.origins.environment = limits, from
	return nil
}

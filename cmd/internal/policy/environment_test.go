package policy

import (
	"strings"
	"testing"

	"relayedge/admission"
)

// spec/000: the limits by the names of the environment, which comes before the file.
func TestEnvironment(t *testing.T) {
	const file = "relay: {message_limits: {sender: {minute: 7}}}"
	written := admission.DefaultMessageLimits()
	written.Sender.Minute = 7
	with := func(change func(*admission.MessageLimitsConfig)) admission.MessageLimitsConfig {
		c := written
		change(&c)
		return c
	}
	for _, row := range []struct {
		name  string
		env   map[string]string
		want  admission.MessageLimitsConfig
		fault string // what the error says, if there is one
	}{
		{"none", nil, written, ""},
		{"RATE_LIMIT_MINUTE", map[string]string{"RATE_LIMIT_MINUTE": "50"}, with(func(c *admission.MessageLimitsConfig) { c.Sender.Minute = 50 }), ""},
		{"RATE_LIMIT_HOUR", map[string]string{"RATE_LIMIT_HOUR": "500"}, with(func(c *admission.MessageLimitsConfig) { c.Sender.Hour = 500 }), ""},
		{"RATE_LIMIT_DAY", map[string]string{"RATE_LIMIT_DAY": "5000"}, with(func(c *admission.MessageLimitsConfig) { c.Sender.Day = 5000 }), ""},
		{"GLOBAL_RATE_LIMIT_MINUTE", map[string]string{"GLOBAL_RATE_LIMIT_MINUTE": "5000"}, with(func(c *admission.MessageLimitsConfig) { c.Global.Minute = 5000 }), ""},
		{"GLOBAL_RATE_LIMIT_HOUR", map[string]string{"GLOBAL_RATE_LIMIT_HOUR": "500000"}, with(func(c *admission.MessageLimitsConfig) { c.Global.Hour = 500000 }), ""},
		{"GLOBAL_RATE_LIMIT_DAY", map[string]string{"GLOBAL_RATE_LIMIT_DAY": "5000000"}, with(func(c *admission.MessageLimitsConfig) { c.Global.Day = 5000000 }), ""},
		{"off and closed", map[string]string{"RATE_LIMIT_MINUTE": "0", "GLOBAL_RATE_LIMIT_DAY": "-1"}, with(func(c *admission.MessageLimitsConfig) { c.Sender.Minute, c.Global.Day = 0, -1 }), ""},
		{"another name", map[string]string{"RATE_LIMIT_WEEK": "x"}, written, ""},

		{"empty", map[string]string{"RATE_LIMIT_HOUR": ""}, written, `RATE_LIMIT_HOUR: "" is no plain integer`},
		{"a word", map[string]string{"RATE_LIMIT_HOUR": "many"}, written, `RATE_LIMIT_HOUR: "many" is no plain integer`},
		{"a fraction", map[string]string{"RATE_LIMIT_HOUR": "1.5"}, written, "RATE_LIMIT_HOUR"},
		{"a power", map[string]string{"RATE_LIMIT_HOUR": "1e30"}, written, "RATE_LIMIT_HOUR"},
		{"with a sign", map[string]string{"RATE_LIMIT_HOUR": "+5"}, written, "RATE_LIMIT_HOUR"},
		{"with a zero before it", map[string]string{"RATE_LIMIT_HOUR": "05"}, written, "RATE_LIMIT_HOUR"},
		{"with a space", map[string]string{"RATE_LIMIT_HOUR": " 5"}, written, "RATE_LIMIT_HOUR"},
		{"quoted", map[string]string{"RATE_LIMIT_HOUR": `"10"`}, written, "RATE_LIMIT_HOUR"},
		{"beyond an int", map[string]string{"RATE_LIMIT_HOUR": "9223372036854775808"}, written, "RATE_LIMIT_HOUR"},
		{"out of range", map[string]string{"RATE_LIMIT_HOUR": "4294967296"}, written, "RATE_LIMIT_HOUR, which stands for relay.message_limits.sender.hour: 4294967296 is out of range"},
		{"below", map[string]string{"GLOBAL_RATE_LIMIT_DAY": "-2"}, written, "GLOBAL_RATE_LIMIT_DAY, which stands for relay.message_limits.global.day: -2 is out of range"},
	} {
		t.Run(row.name, func(t *testing.T) {
			p := mustLoad(t, file)
			err := p.TakeEnvironment(func(name string) (string, bool) {
				v, ok := row.env[name]
				return v, ok
			})
			if row.fault == "" && err != nil || row.fault != "" && (err == nil || !strings.Contains(err.Error(), row.fault)) {
				t.Fatalf("%v", err)
			}
			if p.Relay.MessageLimits != row.want {
				t.Errorf("%+v", p.Relay.MessageLimits)
			}
			for _, v := range variables {
				want := map[bool]string{true: "p.yaml:1", false: "default"}[v.key == "sender.minute"]
				if _, set := row.env[v.name]; set && row.fault == "" {
					want = "environment"
				}
				if got := p.Origin("relay.message_limits." + v.key); got != want {
					t.Errorf("%s comes from %q, want %q", v.key, got, want)
				}
			}
		})
	}
	// All faults at once, and what one variable says right is not taken beside another's fault.
	p := mustLoad(t, file)
	err := p.TakeEnvironment(func(name string) (string, bool) {
		return map[string]string{"RATE_LIMIT_MINUTE": "9", "RATE_LIMIT_HOUR": "x", "RATE_LIMIT_DAY": "y"}[name], strings.HasPrefix(name, "RATE")
	})
	if err == nil || !strings.Contains(err.Error(), "RATE_LIMIT_HOUR") || !strings.Contains(err.Error(), "RATE_LIMIT_DAY") || p.Relay.MessageLimits != written {
		t.Errorf("%v, %+v", err, p.Relay.MessageLimits)
	}
	// A policy without a relay does not look.
	if err := mustLoad(t, edge).TakeEnvironment(func(string) (string, bool) { return "x", true }); err != nil {
		t.Error(err)
	}
}

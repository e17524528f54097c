package admission

import (
	"fmt"
	"strings"
	"testing"

	"relayedge/internal/policyfile"
)

// In a policy file every value of every key has a documented meaning or is refused
// at its place; what is not written is the default, and nothing is silently unlimited.
func TestMessageLimitsInAPolicy(t *testing.T) {
	type file struct {
		MessageLimits MessageLimitsConfig `key:"message_limits" doc:"limits of messages"`
	}
	var f file
	if policyfile.Defaults(&f); f.MessageLimits != DefaultMessageLimits() {
		t.Errorf("an empty file gives %+v", f.MessageLimits)
	}
	for _, tt := range []struct {
		value string
		taken bool
	}{
		{"0", true}, {"-1", true}, {"1", true},
		{"-2", false}, {"", false}, {"1e30", false}, {"4294967296", false}, {"9223372036854775808", false},
		{"9223372036854775807", false}, {"1.5", false}, {`"10"`, false}, {"unlimited", false}, {"~", false},
	} {
		for _, key := range []string{"minute", "hour", "day"} {
			for _, scope := range []string{"sender", "global"} {
				src := fmt.Sprintf("message_limits:\n  %s:\n    %s: %s\n", scope, key, tt.value)
				var f file
				switch err := policyfile.Parse("policy.yaml", []byte(src), &f).Err(); {
				case tt.taken && err != nil:
					t.Errorf("%s.%s: %q: %v", scope, key, tt.value, err)
				case !tt.taken && (err == nil || !strings.Contains(err.Error(), "policy.yaml:3:") || !strings.Contains(err.Error(), scope+"."+key)):
					t.Errorf("%s.%s: %q: %v", scope, key, tt.value, err)
				}
			}
		}
	}
	err := policyfile.Parse("policy.yaml", []byte("message_limits: {unproven_per_host_minute: 1000001}"), &f).Err()
	if err == nil || !strings.Contains(err.Error(), "message_limits.unproven_per_host_minute") {
		t.Errorf("%v", err)
	}
}

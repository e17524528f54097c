package policy

import (
	"strings"
	"testing"
	"time"

	"relayedge/relaycore/api"
)

// How long docs/privacy.md says that something is kept is how long it is.
func TestPrivacyGuide(t *testing.T) {
	page := guide(t, "privacy.md")
	l, r := Default().Limits, Default().Relay
	secs := func(n int) time.Duration { return time.Duration(n) * time.Second }
	const day = 24 * time.Hour
	for _, row := range []struct {
		says      string
		got, want time.Duration
	}{
		{"6.4 seconds after a whole burst", secs(l.ConnectionBurstPerIP) / time.Duration(l.ConnectionRatePerIP), 6400 * time.Millisecond},
		{"6.4 seconds after a whole burst", secs(l.ConnectionBurstPerIPv648) / time.Duration(l.ConnectionRatePerIPv648), 6400 * time.Millisecond},
		{"until the window ends, 60 seconds by default", secs(Default().RequestLimits.WindowSecs), time.Minute},
		{"`identity_ttl_secs`, 30 days", secs(r.Limits.IdentityTTLSecs), 30 * day},
		{"until acknowledged, 72 hours at most", secs(r.OfflineQueue.TTLSecs), 72 * time.Hour},
		{"a knock up to `ttl_secs`", secs(r.OfflineQueue.TTLSecs), 72 * time.Hour},
		{"hashes of sender and id, and the answer | 24 hours", api.AnswerLife, day},
		{"after the client last left it, 30 days", secs(r.Push.RegistrationTTLSecs), 30 * day},
	} {
		if !strings.Contains(page, row.says) {
			t.Errorf("the page does not say %q", row.says)
		}
		if row.got != row.want {
			t.Errorf("the page says %q, the code %v", row.says, row.got)
		}
	}
	if Default().Log.ClientAddresses != "none" || defaultOf(t, "relay.push.enabled") != "false" || !strings.Contains(page, "| `none`, the default |") {
		t.Error("what the page says of the defaults is not so")
	}
}

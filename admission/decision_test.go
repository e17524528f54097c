package admission_test

import (
	"testing"
	"time"

	"relayedge/admission"
)

// Whoever comes again at the second that is told does not come too early.
func TestSecondsAreRoundedUp(t *testing.T) {
	second := time.Unix(1_700_000_000, 0)
	for _, tt := range []struct {
		wait        time.Duration
		after, past int64
	}{{0, 1, 0}, {1, 1, 1}, {time.Second, 1, 1}, {time.Second + 1, 2, 2}, {2*time.Second - 1, 2, 2}} {
		d := admission.Decision{RetryAfter: tt.wait, Reset: second.Add(tt.wait)}
		if after, reset := d.RetryAfterSecs(), d.ResetSecs(); after != tt.after || reset != second.Unix()+tt.past {
			t.Errorf("%v: after %d, at second %d, want %d and %d", tt.wait, after, reset-second.Unix(), tt.after, tt.past)
		}
	}
}

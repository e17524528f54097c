package push

import (
	"context"
	"net/http"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"relayedge/admission"
)

// panicking is a budget and a transport that panic as often as they are told to.
type panicking struct{ budget, transport int }

func (p *panicking) Take(context.Context, admission.Key, time.Time) admission.Decision {
	if p.budget--; p.budget >= 0 {
		panic("the budget's")
	}
	return admission.Decision{Allowed: true}
}

func (p *panicking) RoundTrip(*http.Request) (*http.Response, error) {
	if p.transport--; p.transport >= 0 {
		panic("the transport's")
	}
	return &http.Response{StatusCode: 201, Body: http.NoBody}, nil
}

// A panic in a wake-up is its failure alone: it is told, whoever waits for it has
// an answer, its place is free again, and the next one is made.
func TestWakePanic(t *testing.T) {
	for _, row := range []panicking{{budget: 3}, {transport: 3}} {
		synctest.Test(t, func(t *testing.T) {
			cfg := DefaultConfig()
			cfg.Enabled, cfg.AllowedHosts, cfg.MaxInFlight = true, []string{"push.example.org"}, 1
			var told []any
			w := newWaker(cfg, Options{Budget: &row, Keys: admission.NewKeyMaker(nil), Panicked: func(fault any) { told = append(told, fault) }}, &row)
			defer w.Close()
			if _, err := w.Register(who(1), "https://push.example.org/", time.Now(), netip.Prefix{}); err != nil {
				t.Fatal(err)
			}
			w.Wake(who(1))
			synctest.Wait()
			for n := range 2 {
				if result, err := w.Test(t.Context(), who(1)); err != nil || result.Outcome != Failed {
					t.Errorf("test %d: %v, %v", n, result.Outcome, err)
				}
			}
			synctest.Wait()
			if c := w.Stats(); len(told) != 3 || c.Outcomes[Failed] != 3 || c.InFlight != 0 || c.Waiting != 0 || c.Registrations != 1 {
				t.Errorf("told of %v; %+v", told, c)
			}
			if result, err := w.Test(t.Context(), who(1)); err != nil || result.Outcome != Woken {
				t.Errorf("afterwards: %v, %v", result.Outcome, err)
			}
		})
	}
}

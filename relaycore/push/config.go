package push

import (
	"errors"
	"math"
	"time"

	"relayedge/internal/keyfault"
)

// Config is the push section of the relay. The tags are read by the policy file.
type Config struct {
	Enabled                 bool     `key:"enabled" default:"false" doc:"clients that are away may leave an endpoint and are woken there when a message is queued for them"`
	AllowedHosts            []string `key:"allowed_hosts" default:"[]" doc:"hosts of push services that are called, at public addresses only: push.example.org (port 443), push.example.org:8443, *.example.org (every name below it)"`
	BudgetPerHour           int      `key:"budget_per_hour" default:"60" min:"1" max:"3600" doc:"wake-ups of one registration an hour; beyond it they are skipped"`
	MaxRegistrations        int      `key:"max_registrations" default:"100000" min:"1" max:"10000000" doc:"endpoints that are kept; beyond it the source with the most loses its oldest"`
	RegistrationBudgetBytes int      `key:"registration_budget_bytes" default:"134217728" min:"1048576" max:"68719476736" doc:"memory of the endpoints that are kept"`
	RegistrationTTLSecs     int      `key:"registration_ttl_secs" default:"2592000" min:"3600" max:"31536000" doc:"time for which an endpoint is kept after its client last left it"`
	TimeoutSecs             int      `key:"timeout_secs" default:"10" min:"1" max:"60" doc:"time for one wake-up, from the look-up of the name to the answer"`
	MaxInFlight             int      `key:"max_in_flight" default:"32" min:"1" max:"1024" doc:"wake-ups under way at once, half of them to one host; the others wait in line"`
}

// DefaultConfig returns the defaults of the policy file.
func DefaultConfig() Config {
	return Config{
		BudgetPerHour: 60, MaxRegistrations: 100_000, RegistrationBudgetBytes: 128 << 20,
		RegistrationTTLSecs: 30 * 86400, TimeoutSecs: 10, MaxInFlight: 32,
	}
}

// BudgetWindow is the window of budget_per_hour.
const BudgetWindow = time.Hour

// maxBudget is 64 GiB, where an int can say that.
const maxBudget = min(64<<30, math.MaxInt)

// Validate returns an error that names every value that is out of range or does
// not fit another.
func (c Config) Validate() error {
	var errs []error
	within := func(key string, v, low, high int) {
		if v < low || v > high {
			errs = append(errs, keyfault.New(key, "%d is out of range, allowed is %d to %d", v, low, high))
		}
	}
	if _, err := newHosts(c.AllowedHosts); err != nil {
		errs = append(errs, err)
	}
	if c.Enabled && len(c.AllowedHosts) == 0 {
		errs = append(errs, keyfault.New("allowed_hosts", "is empty, so no endpoint could be called; name the hosts of the push services that your clients use, or set enabled: false"))
	}
	within("budget_per_hour", c.BudgetPerHour, 1, 3600)
	within("max_registrations", c.MaxRegistrations, 1, 10_000_000)
	within("registration_budget_bytes", c.RegistrationBudgetBytes, 1<<20, maxBudget)
	within("registration_ttl_secs", c.RegistrationTTLSecs, 3600, 365*86400)
	within("timeout_secs", c.TimeoutSecs, 1, 60)
	within("max_in_flight", c.MaxInFlight, 1, 1024)
	return errors.Join(errs...)
}

func (c Config) ttl() time.Duration     { return time.Duration(c.RegistrationTTLSecs) * time.Second }
func (c Config) timeout() time.Duration { return time.Duration(c.TimeoutSecs) * time.Second }

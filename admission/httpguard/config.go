package httpguard

import (
	"errors"
	"time"

	"relayedge/internal/keyfault"
)

// Config is the request_limits section of a policy. The tags are read by the policy file.
type Config struct {
	Limit                       int `key:"limit" default:"6000" min:"1" max:"1000000000" doc:"requests of one credential, or of one host without, in a fixed window"`
	WindowSecs                  int `key:"window_secs" default:"60" min:"1" max:"86400" doc:"length of that window, from its first request"`
	NewCredentialsPerHostMinute int `key:"new_credentials_per_host_minute" default:"30" min:"1" max:"1000000" doc:"credentials not seen before that one host may bring a minute; beyond it their requests count for the host"`
}

// DefaultConfig returns the defaults of the policy file.
func DefaultConfig() Config {
	return Config{Limit: 6000, WindowSecs: 60, NewCredentialsPerHostMinute: 30}
}

// Window returns the length of the window.
func (c Config) Window() time.Duration { return time.Duration(c.WindowSecs) * time.Second }

// Validate returns an error that names every value out of its range.
func (c Config) Validate() error {
	var faults []error
	within := func(key string, value, most int) {
		if value < 1 || value > most {
			faults = append(faults, keyfault.New(key, "%d is out of range, allowed is 1 to %d", value, most))
		}
	}
	within("limit", c.Limit, 1_000_000_000)
	within("window_secs", c.WindowSecs, 86400)
	within("new_credentials_per_host_minute", c.NewCredentialsPerHostMinute, 1_000_000)
	return errors.Join(faults...)
}

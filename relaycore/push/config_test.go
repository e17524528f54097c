package push

import (
	"strings"
	"testing"
)

func TestConfig(t *testing.T) {
	if err := DefaultConfig().Validate(); err != nil {
		t.Error(err)
	}
	for _, row := range []struct {
		change func(*Config)
		want   string // the key of the fault; "": none
	}{
		{func(c *Config) { c.Enabled = true }, "allowed_hosts: "},
		{func(c *Config) { c.Enabled, c.AllowedHosts = true, []string{"push.example.org"} }, ""},
		{func(c *Config) { c.AllowedHosts = []string{"127.0.0.1"} }, "allowed_hosts[0]: "},
		{func(c *Config) { c.BudgetPerHour = 0 }, "budget_per_hour: "},
		{func(c *Config) { c.BudgetPerHour = 1 }, ""},
		{func(c *Config) { c.BudgetPerHour = 3600 }, ""},
		{func(c *Config) { c.BudgetPerHour = 3601 }, "budget_per_hour: "},
		{func(c *Config) { c.MaxRegistrations = 0 }, "max_registrations: "},
		{func(c *Config) { c.MaxRegistrations = 10_000_001 }, "max_registrations: "},
		{func(c *Config) { c.RegistrationBudgetBytes = 1<<20 - 1 }, "registration_budget_bytes: "},
		{func(c *Config) { c.RegistrationBudgetBytes = maxBudget + 1 }, "registration_budget_bytes: "},
		{func(c *Config) { c.RegistrationTTLSecs = 3599 }, "registration_ttl_secs: "},
		{func(c *Config) { c.RegistrationTTLSecs = 31536001 }, "registration_ttl_secs: "},
		{func(c *Config) { c.TimeoutSecs = 0 }, "timeout_secs: "},
		{func(c *Config) { c.TimeoutSecs = 61 }, "timeout_secs: "},
		{func(c *Config) { c.MaxInFlight = 0 }, "max_in_flight: "},
		{func(c *Config) { c.MaxInFlight = 1025 }, "max_in_flight: "},
	} {
		c := DefaultConfig()
		row.change(&c)
		switch err := c.Validate(); {
		case row.want == "" && err != nil, row.want != "" && (err == nil || !strings.HasPrefix(err.Error(), row.want)):
			t.Errorf("%+v: %v", c, err)
		}
	}
}

package mailbox

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"
)

// DefaultConfig is what the tags say, and good as it is.
func TestDefaultsAreThoseOfTheTags(t *testing.T) {
	v := reflect.ValueOf(DefaultConfig())
	for i := range v.NumField() {
		tag := v.Type().Field(i).Tag
		if got := fmt.Sprint(v.Field(i).Interface()); got != tag.Get("default") || tag.Get("doc") == "" {
			t.Errorf("%s is %q, its tag says %q: %q", tag.Get("key"), got, tag.Get("default"), tag.Get("doc"))
		}
	}
	if err := DefaultConfig().Validate(); err != nil {
		t.Error(err)
	}
	if ttl := DefaultConfig().TTL(); ttl != 72*time.Hour {
		t.Errorf("the ttl is %v", ttl)
	}
}

// spec/003, [server.offline_queue]: ttl_secs 3600 to 259200, knock_budget_bytes.
func TestConfig(t *testing.T) {
	for _, row := range []struct {
		change func(*Config)
		faults []string // keys
	}{
		{func(c *Config) { c.TTLSecs = 3600 }, nil},
		{func(c *Config) { c.TTLSecs = 3599 }, []string{"ttl_secs"}},
		{func(c *Config) { c.TTLSecs = 259200 }, nil},
		{func(c *Config) { c.TTLSecs = 259201 }, []string{"ttl_secs"}},
		{func(c *Config) { c.TTLSecs = 0 }, []string{"ttl_secs"}},
		{func(c *Config) { c.TTLSecs = -1 }, []string{"ttl_secs"}},
		{func(c *Config) { c.KnockBudgetBytes = 81920 }, nil},
		{func(c *Config) { c.KnockBudgetBytes = 81919 }, []string{"knock_budget_bytes"}},
		{func(c *Config) { c.KnockBudgetBytes = 1 << 30 }, nil},
		{func(c *Config) { c.KnockBudgetBytes = 1<<30 + 1 }, []string{"knock_budget_bytes"}},
		{func(c *Config) { c.File, c.KeyFile = "a", "b" }, nil},
		{func(c *Config) { c.File = "a" }, []string{"key_file"}},
		{func(c *Config) { c.KeyFile = "a" }, []string{"file"}},
		{func(c *Config) { c.File, c.KeyFile = "a", "a" }, []string{"key_file"}},
		{func(c *Config) { c.TTLSecs, c.KnockBudgetBytes = 1, 1 }, []string{"ttl_secs", "knock_budget_bytes"}},
	} {
		c := DefaultConfig()
		row.change(&c)
		var faults []string
		if err := c.Validate(); err != nil {
			for _, err := range err.(interface{ Unwrap() []error }).Unwrap() {
				faults = append(faults, err.(interface{ PolicyKey() string }).PolicyKey())
				if text := err.Error(); !strings.Contains(text, "allowed is ") && !strings.Contains(text, "; ") {
					t.Errorf("%q says neither what is allowed nor what to do", text)
				}
			}
		}
		if fmt.Sprint(faults) != fmt.Sprint(row.faults) {
			t.Errorf("%+v: %v, want %v", c, faults, row.faults)
		}
	}
}

package httpguard

import (
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"relayedge/internal/policyfile"
)

// The tags and Validate say the same of each key.
func TestConfig(t *testing.T) {
	if c := DefaultConfig(); c.Validate() != nil || c != (Config{6000, 60, 30}) || c.Window() != time.Minute {
		t.Errorf("the defaults are %+v", c)
	}
	for f := range reflect.TypeFor[Config]().Fields() {
		key := f.Tag.Get("key")
		c := DefaultConfig()
		field := reflect.ValueOf(&c).Elem().FieldByIndex(f.Index)
		if got := strconv.FormatInt(field.Int(), 10); got != f.Tag.Get("default") {
			t.Errorf("%s: the default is %s, the tag says %s", key, got, f.Tag.Get("default"))
		}
		least, _ := strconv.ParseInt(f.Tag.Get("min"), 10, 64)
		most, _ := strconv.ParseInt(f.Tag.Get("max"), 10, 64)
		for _, value := range []int64{least, most} {
			if field.SetInt(value); c.Validate() != nil {
				t.Errorf("%s: %d is refused: %v", key, value, c.Validate())
			}
		}
		for _, value := range []int64{least - 1, -1, most + 1, 1 << 40} {
			field.SetInt(value)
			err := c.Validate()
			if err == nil || !strings.HasPrefix(err.Error(), key+": "+strconv.FormatInt(value, 10)) {
				t.Errorf("%s: %d: %v", key, value, err)
			}
			if _, again := New(c, Options{}); again == nil {
				t.Errorf("%s: a guard takes %d", key, value)
			}
		}
	}
}

func TestSetConfig(t *testing.T) {
	g := newGuard(t, Config{Limit: 5, WindowSecs: 60, NewCredentialsPerHostMinute: 1}, Options{Addr: addrHeader})
	ask := request("192.0.2.1")
	for range 3 {
		g.Take(ask)
	}
	if err := g.SetConfig(Config{Limit: 10, WindowSecs: 120, NewCredentialsPerHostMinute: 2}); err != nil {
		t.Fatal(err)
	}
	if d := g.Take(ask); !d.Allowed || d.Limit != 10 || d.Remaining != 6 || time.Until(d.Reset) < time.Minute {
		t.Errorf("after a reload %+v, want 6 of 10 to remain for nearly two minutes", d)
	}
	for n := range 2 {
		if d := g.Take(request("192.0.2.1", "X-Api-Key", "key-"+strconv.Itoa(n))); d.Remaining != 9 {
			t.Errorf("the credential %d is told %+v, want a window of its own", n, d)
		}
	}
	if err := g.SetConfig(Config{}); err == nil {
		t.Error("a config of zeroes is taken")
	}
	if d := g.Take(ask); d.Limit != 10 || d.Remaining != 5 {
		t.Errorf("after a reload that failed %+v", d)
	}
}

// In a policy file every value has its meaning or is refused at its place; none
// is silently unlimited.
func TestConfigInAPolicy(t *testing.T) {
	type file struct {
		RequestLimits Config `key:"request_limits" doc:"limits of requests"`
	}
	var f file
	if policyfile.Defaults(&f); f.RequestLimits != DefaultConfig() {
		t.Errorf("an empty file gives %+v", f.RequestLimits)
	}
	for _, key := range []string{"limit", "window_secs", "new_credentials_per_host_minute"} {
		for _, value := range []string{"0", "-1", "", "1e30", "4294967296", "9223372036854775808", "1.5", `"10"`, "60s"} {
			var f file
			err := policyfile.Parse("policy.yaml", []byte("request_limits:\n  "+key+": "+value+"\n"), &f).Err()
			if err == nil || !strings.Contains(err.Error(), "policy.yaml:2:") || !strings.Contains(err.Error(), key) {
				t.Errorf("%s: %q: %v", key, value, err)
			}
		}
		var f file
		if err := policyfile.Parse("policy.yaml", []byte("request_limits:\n  "+key+": 10\n"), &f).Err(); err != nil {
			t.Error(err)
		}
	}
}

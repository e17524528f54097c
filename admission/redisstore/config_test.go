package redisstore

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"relayedge/internal/policyfile"
)

func TestURL(t *testing.T) {
	tests := []struct {
		url  string
		want address
	}{
		{"redis://127.0.0.1", address{servers: []string{"127.0.0.1:6379"}}},
		{"redis://redis.example:7000/2", address{servers: []string{"redis.example:7000"}, db: 2}},
		{"redis://redis.example/", address{servers: []string{"redis.example:6379"}}},
		{"valkey://[2001:db8::1]", address{servers: []string{"[2001:db8::1]:6379"}}},
		{"rediss://[2001:db8::1]:7000/0", address{servers: []string{"[2001:db8::1]:7000"}, tls: true}},
		{"valkeys://h", address{servers: []string{"h:6379"}, tls: true}},
		{"redis://:secret@h", address{servers: []string{"h:6379"}, password: "secret"}},
		{"redis://u@h", address{servers: []string{"h:6379"}, user: "u"}},
		{"redis://u:a%2Fb%40c%3Ad:e@h", address{servers: []string{"h:6379"}, user: "u", password: "a/b@c:d:e"}},
		{"unix:///run/redis.sock", address{servers: []string{"/run/redis.sock"}, socket: true}},
		{"unix://u:p@/run/redis.sock?db=3", address{servers: []string{"/run/redis.sock"}, socket: true, user: "u", password: "p", db: 3}},
		{"redis+sentinel://a,b:1,[::1]/mine", address{servers: []string{"a:26379", "b:1", "[::1]:26379"}, master: "mine"}},
		{"rediss+sentinel://u:p@a/mine/4?sentinel_user=su&sentinel_password=sp", address{servers: []string{"a:26379"}, master: "mine", db: 4, tls: true,
			user: "u", password: "p", sentinelUser: "su", sentinelPassword: "sp"}},
		{"redis+cluster://a,b:1", address{servers: []string{"a:6379", "b:1"}, cluster: true}},
		{"valkeys+cluster://:p@a/0", address{servers: []string{"a:6379"}, cluster: true, tls: true, password: "p"}},
	}
	for _, tt := range tests {
		got, err := URL(tt.url).parse()
		if err != nil {
			t.Errorf("%s: %v", tt.url, err)
		} else if !reflect.DeepEqual(*got, tt.want) {
			t.Errorf("%s is %+v, want %+v", tt.url, *got, tt.want)
		}
	}
}

// Each wrong URL holds a password, which no error and nothing that shows the URL tells.
func TestWrongURLs(t *testing.T) {
	tests := []struct{ url, want string }{
		{"s3cret", "begins with none of"},
		{"http://:s3cret@h", "begins with none of"},
		{"redis:s3cret@h", "begins with none of"},
		{"redis://:s3cret@", "names no server"},
		{"redis://:s3cret@h:0", "names no server"},
		{"redis://:s3cret@h:65536", "names no server"},
		{"redis://:s3cret@h:x", "names no server"},
		{"redis://:s3cret@h h", "names no server"},
		{"redis://:s3cret@::1", "names no server"},
		{"redis://:s3c/ret@h", "must be escaped"},
		{"redis://:s3c@ret@h", "must be escaped"},
		{"redis://:s3c%ret@h", "must be escaped"},
		{"redis://:s3c#ret@h", "has a #"},
		{"redis://:s3c?ret@h", "a parameter that is none"},
		{"redis://:s3cret@a,b", "several servers"},
		{"redis://:s3cret@a/x", "number of the database"},
		{"redis://:s3cret@a/-1", "number of the database"},
		{"redis://:s3cret@a/1/2", "number of the database"},
		{"redis://:s3cret@a?db=1", "a parameter that is none"},
		{"redis://:s3cret@a?sentinel_password=s3cret", "a parameter that is none"},
		{"unix://:s3cret@run/redis.sock", "begin at the root"},
		{"unix://:s3cret@/run?db=1&db=2", "a parameter twice"},
		{"unix://:s3cret@/run?db=x", "number of the database"},
		{"unix://:s3cret@/run?db=%zz", "parameters"},
		{"redis+sentinel://:s3cret@a", "call the master"},
		{"redis+sentinel://:s3cret@a/", "call the master"},
		{"redis+sentinel://:s3cret@a/m/x", "number of the database"},
		{"redis+cluster://:s3cret@a/1", "a cluster has none but 0"},
		{"redis+cluster://:s3cret@" + strings.Repeat("a,", 64) + "a", "more than 64"},
	}
	for _, tt := range tests {
		cfg := Config{URL: URL(tt.url), SecretFile: "x", Prefix: "p"}
		err := cfg.Validate()
		if err == nil || !strings.Contains(err.Error(), tt.want) || !strings.HasPrefix(err.Error(), "url: ") {
			t.Errorf("%s: %v, want %q", tt.url, err, tt.want)
			continue
		}
		shown := fmt.Sprint(err, cfg, cfg.URL) + fmt.Sprintf("%v %+v %s", cfg, cfg, cfg.URL)
		_, openErr := Open(cfg, slog.New(slog.DiscardHandler))
		for _, part := range []string{"s3c", "ret@", "s3cret"} {
			if strings.Contains(shown+fmt.Sprint(openErr), part) {
				t.Errorf("%s is told by %q or %v", tt.url, shown, openErr)
			}
		}
		if openErr == nil {
			t.Errorf("%s is opened", tt.url)
		}
	}
}

func TestURLIsShownWithoutPassword(t *testing.T) {
	for url, want := range map[URL]string{
		"":                       "",
		"redis://h:1/2":          "redis://h:1/2",
		"redis://u:s3cret@h:1/2": "redis://[hidden]@h:1/2",
		"redis+sentinel://a,b/m": "redis+sentinel://a,b/m",
		"redis+sentinel://a/m?sentinel_password=s3cret": "redis+sentinel://a/m?[hidden]",
		"redis+sentinel://:s3cret@a/m?sentinel_user=u":  "redis+sentinel://[hidden]@a/m?[hidden]",
		"redis://:s3c/ret@h":                            "[hidden]",
		"unix:///run/redis.sock":                        "unix:///run/redis.sock",
		"rediss+cluster://u@a,b":                        "rediss+cluster://[hidden]@a,b",
	} {
		if got := url.String(); got != want {
			t.Errorf("%q is shown as %q, want %q", string(url), got, want)
		}
		if err := (Config{URL: URL(want), SecretFile: "x", Prefix: "p"}).Validate(); strings.Contains(want, hidden) && err == nil {
			t.Errorf("what is shown, %q, is taken for a URL", want)
		}
	}
}

// section is a policy of this section alone.
type section struct {
	Redis Config `key:"redis" doc:"the store"`
}

func TestPolicySection(t *testing.T) {
	parse := func(text string) (section, error) {
		var s section
		err := policyfile.Parse("/etc/relayedge/p.yaml", []byte(text), &s).Err()
		return s, err
	}
	absent, err := parse("")
	if err != nil || absent.Redis.Enabled() {
		t.Errorf("%+v, %v of no section", absent, err)
	}
	if f := absent.Redis.OnFailure; absent.Redis.Prefix != "relayedge" || f != (OnFailure{"local", "local", "local", "local"}) {
		t.Errorf("the defaults are %+v", absent.Redis)
	}
	whole, err := parse("redis:\n  url: redis://:s3cret@h\n  secret_file: secret\n  on_failure: {budgets: refuse}\n")
	if err != nil || !whole.Redis.Enabled() || whole.Redis.SecretFile != "/etc/relayedge/secret" || whole.Redis.OnFailure.Budgets != "refuse" {
		t.Errorf("%+v, %v", whole, err)
	}
	if shown := string(policyfile.Encode(whole)); strings.Contains(shown, "s3cret") || !strings.Contains(shown, "redis://[hidden]@h") {
		t.Errorf("the policy is shown as\n%s", shown)
	}
	other := whole
	other.Redis.URL = "redis://:other@h"
	if changes := fmt.Sprint(policyfile.Changes(whole, other)); !strings.Contains(changes, "redis.url") || strings.Contains(changes, "s3cret") || strings.Contains(changes, "other") {
		t.Errorf("another password is told as %s", changes)
	}
	for text, want := range map[string]string{
		"redis: {url: redis://h}":                                        "redis.secret_file: is not written",
		"redis: {url: redis://h, url_file: f, secret_file: s}":           "redis.url_file: url is written too",
		"redis: {url: 'redis://:s3cret@', secret_file: s}":               "redis.url: names no server",
		"redis: {prefix: ''}":                                            "redis.prefix: allowed are 1 to 64",
		"redis: {prefix: 'a{b}'}":                                        "redis.prefix: allowed are 1 to 64",
		"redis: {prefix: " + strings.Repeat("a", 65) + "}":               "redis.prefix: allowed are 1 to 64",
		"redis: {on_failure: {request_limits: allow}}":                   "local",
		"redis: {on_failure: {message_limits: deny, connections: deny}}": "local",
		"redis: {on_failure: local}":                                     "redis.on_failure",
		"redis: {password: s3cret}":                                      "password",
	} {
		if _, err := parse(text); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

// A section that shares nothing is no fleet, and is not taken for one.
func TestSectionWithoutURL(t *testing.T) {
	for _, cfg := range []Config{{SecretFile: "secret", Prefix: "p"}, {CAFile: "ca.pem", Prefix: "p"}} {
		if err := cfg.Validate(); err == nil || !strings.HasPrefix(err.Error(), "url: is not written") {
			t.Errorf("%+v: %v", cfg, err)
		}
	}
	if err := (Config{Prefix: "p"}).Validate(); err != nil {
		t.Error(err)
	}
}

func TestFiles(t *testing.T) {
	folder := t.TempDir()
	good := strings.Repeat("0123456789abcdef", 2)
	secrets := []struct {
		text string
		mode os.FileMode
		want string // "": it is taken
	}{
		{good, 0o600, ""}, {good + "\n", 0o640, ""}, {good, 0o400, ""},
		{good, 0o644, "mode 0644"}, {good, 0o660, "mode 0660"}, {good, 0o604, "mode 0604"},
		{good[1:] + "\n\n", 0o600, "holds 31 bytes"}, {"", 0o600, "holds 0 bytes"},
		{strings.Repeat("x", 32), 0o600, "over and over"},
		{strings.Repeat(good, 200), 0o600, "larger than 4096 bytes"},
	}
	for _, tt := range secrets {
		cfg := Config{SecretFile: writeFile(t, "secret", tt.text, tt.mode)}
		secret, err := cfg.Secret()
		switch {
		case tt.want == "" && (err != nil || string(secret) != strings.TrimSpace(tt.text)):
			t.Errorf("%q of mode %o: %q, %v", tt.text, tt.mode, secret, err)
		case tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want) || !strings.HasPrefix(err.Error(), "redis.secret_file: ") || strings.Contains(err.Error(), good[1:])):
			t.Errorf("%q of mode %o: %v, want %q", tt.text, tt.mode, err, tt.want)
		}
	}
	log := slog.New(slog.DiscardHandler)
	for name, tt := range map[string]struct {
		cfg  Config
		want string
	}{
		"no url file":         {Config{URLFile: filepath.Join(folder, "none")}, "redis.url_file: "},
		"a folder":            {Config{URLFile: folder}, "no regular file"},
		"an open url file":    {Config{URLFile: writeFile(t, "url", "redis://:s3cret@h", 0o644)}, "mode 0644"},
		"a wrong url in file": {Config{URLFile: writeFile(t, "url", "redis://:s3cret@", 0o600)}, "names no server"},
		"no CA file":          {Config{URL: "rediss://h", CAFile: filepath.Join(folder, "none")}, "redis.ca_file: "},
		"an empty CA file":    {Config{URL: "rediss://h", CAFile: writeFile(t, "ca", "", 0o600)}, "no certificate"},
		"a CA without TLS":    {Config{URL: "redis://h", CAFile: writeFile(t, "ca", "", 0o600)}, "rediss://"},
	} {
		store, err := Open(tt.cfg, log)
		if err == nil {
			store.Close()
		}
		if err == nil || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: %v, want %q", name, err, tt.want)
		}
	}
}

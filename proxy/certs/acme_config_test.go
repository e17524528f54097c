package certs

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func goodACME() ACME {
	return ACME{Domains: []string{"a.example.org"}, AgreeToTerms: true, Challenges: []string{challengeALPN, challengeHTTP}, HTTPBind: "[::]:80", Storage: "/s"}
}

func TestACMEValidate(t *testing.T) {
	many := make([]string, maxDomains)
	for i := range many {
		many[i] = fmt.Sprintf("n%d.example.org", i)
	}
	for _, tt := range []struct {
		name   string
		change func(*ACME)
		want   []string // "key: part of the text" for each fault
	}{
		{"good", func(*ACME) {}, nil},
		{"off", func(c *ACME) { *c = ACME{HTTPBind: "x", Email: "x"} }, nil},
		{"as many as allowed", func(c *ACME) { c.Domains = many }, nil},
		{"one more", func(c *ACME) { c.Domains = append(many[:maxDomains:maxDomains], "one.more") }, []string{"domains: has 101 names, allowed are 100"}},
		{"no consent", func(c *ACME) { c.AgreeToTerms = false }, []string{"agree_to_terms: terms of service"}},
		{"wildcard", func(c *ACME) { c.Domains = []string{"*.example.org"} }, []string{"domains[0]: dns-01"}},
		{"IPv4", func(c *ACME) { c.Domains = []string{"192.0.2.1"} }, []string{"domains[0]: is an IP address"}},
		{"IPv6", func(c *ACME) { c.Domains = []string{"2001:db8::1"} }, []string{"domains[0]: is an IP address"}},
		{"IPv6 in brackets", func(c *ACME) { c.Domains = []string{"[2001:db8::1]"} }, []string{"domains[0]: is an IP address"}},
		{"empty name", func(c *ACME) { c.Domains = []string{""} }, []string{"domains[0]: neither"}},
		{"not ASCII", func(c *ACME) { c.Domains = []string{"bücher.example"} }, []string{"domains[0]: xn-- form"}},
		{"trailing dot", func(c *ACME) { c.Domains = []string{"a.example."} }, []string{"domains[0]: ends in a dot"}},
		{"URL", func(c *ACME) { c.Domains = []string{"https://a.example"} }, []string{"domains[0]: neither"}},
		{"path", func(c *ACME) { c.Domains = []string{"../../etc"} }, []string{"domains[0]: neither"}},
		{"twice", func(c *ACME) { c.Domains = []string{"a.example.org", "A.Example.ORG"} }, []string{`domains[1]: "A.Example.ORG" is domains[0] already`}},
		{"special names", func(c *ACME) {
			c.Domains = []string{"a.alt", "a.example", "a.internal", "a.invalid", "a.local", "a.localhost", "a.onion", "a.test", "a.home.arpa"}
		}, []string{"domains[0]: no public name", "domains[1]: no public name", "domains[2]: no public name", "domains[3]: no public name", "domains[4]: no public name",
			"domains[5]: no public name", "domains[6]: no public name", "domains[7]: no public name", "domains[8]: no public name"}},
		{"names that no public CA certifies", func(c *ACME) {
			c.Domains = []string{"localhost", "relay", "relay.internal", "A.B.Local", "home.arpa.org", "x.home.arpa"}
		},
			[]string{"domains[0]: directory_url", "domains[1]: no public name", "domains[2]: no public name", "domains[3]: no public name", "domains[5]: no public name"}},
		{"such names of a private CA", func(c *ACME) {
			c.Domains, c.DirectoryURL = []string{"relay", "relay.internal"}, "https://ca.internal:9000/acme/acme/directory"
		}, nil},
		{"e-mail", func(c *ACME) { c.Email = "ops+tls@example.org" }, nil},
		{"e-mail without a name", func(c *ACME) { c.Email = "@example.org" }, []string{"email: no e-mail address"}},
		{"e-mail without a domain", func(c *ACME) { c.Email = "ops" }, []string{"email: no e-mail address"}},
		{"two e-mails", func(c *ACME) { c.Email = "a@b.c,d@e.f" }, []string{"email: no e-mail address"}},
		{"e-mail and header", func(c *ACME) { c.Email = "a?cc=b@c.d" }, []string{"email: no e-mail address"}},
		{"long e-mail", func(c *ACME) { c.Email = strings.Repeat("a", 250) + "@b.cd" }, []string{"email: no e-mail address"}},
		{"private CA", func(c *ACME) { c.DirectoryURL = "https://ca.internal:9000/acme/acme/directory" }, nil},
		{"http CA", func(c *ACME) { c.DirectoryURL = "http://ca.internal/dir" }, []string{"directory_url: no https URL"}},
		{"CA without a host", func(c *ACME) { c.DirectoryURL = "https:///dir" }, []string{"directory_url: no https URL"}},
		{"CA with a password", func(c *ACME) { c.DirectoryURL = "https://a:b@ca/dir" }, []string{"directory_url: no https URL"}},
		{"CA that is no URL", func(c *ACME) { c.DirectoryURL = "letsencrypt" }, []string{"directory_url: no https URL"}},
		{"EAB", func(c *ACME) { c.EABKeyID, c.EABKeyFile = "kid-1", "/f" }, nil},
		{"EAB without a file", func(c *ACME) { c.EABKeyID = "kid-1" }, []string{"eab_key_file: belongs to eab_key_id"}},
		{"EAB without an id", func(c *ACME) { c.EABKeyFile = "/f" }, []string{"eab_key_id: belongs to eab_key_file"}},
		{"EAB with a space", func(c *ACME) { c.EABKeyID, c.EABKeyFile = "kid 1", "/f" }, []string{"eab_key_id: no key identifier"}},
		{"no challenge", func(c *ACME) { c.Challenges = nil }, []string{"challenges: is empty"}},
		{"a challenge twice", func(c *ACME) { c.Challenges = []string{challengeHTTP, challengeHTTP} }, []string{"challenges[1]: already"}},
		{"no http_bind", func(c *ACME) { c.HTTPBind = "" }, []string{"http_bind: host:port"}},
		{"no http_bind is needed", func(c *ACME) { c.HTTPBind, c.Challenges = "", []string{challengeALPN} }, nil},
		{"no storage", func(c *ACME) { c.Storage = "" }, []string{"storage: is empty"}},
		{"all in one go", func(c *ACME) { c.Domains, c.AgreeToTerms, c.Storage = []string{"*"}, false, "" },
			[]string{"domains[0]: dns-01", "agree_to_terms: is false", "storage: is empty"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cfg := goodACME()
			tt.change(&cfg)
			err := cfg.Validate()
			var got []error
			if err != nil {
				got = err.(interface{ Unwrap() []error }).Unwrap()
			}
			if len(got) != len(tt.want) {
				t.Fatalf("faults %q, want %q", got, tt.want)
			}
			for i, want := range tt.want {
				key, text, _ := strings.Cut(want, ": ")
				if k := got[i].(interface{ PolicyKey() string }).PolicyKey(); k != key || !strings.Contains(got[i].Error(), text) {
					t.Errorf("fault %q, want %q", got[i], want)
				}
			}
			if _, openErr := Open(Config{ACME: cfg}, quiet); err != nil && openErr == nil {
				t.Error("Open takes it")
			}
		})
	}
}

func TestOpenACMERefusesFiles(t *testing.T) {
	folder := t.TempDir()
	file := func(name, text string) string {
		write(t, filepath.Join(folder, name), text)
		return filepath.Join(folder, name)
	}
	for _, tt := range []struct {
		name   string
		change func(*ACME)
		want   string // empty: it opens
	}{
		{"roots", func(c *ACME) { c.CARootFile = file("roots.pem", makeCert(t, nil, 1e12, "ca").chain) }, ""},
		{"no roots", func(c *ACME) { c.CARootFile = file("empty.pem", "nothing") }, "ca_root_file: " + folder + "/empty.pem: holds no PEM certificate"},
		{"missing roots", func(c *ACME) { c.CARootFile = folder + "/none" }, "ca_root_file: " + folder + "/none: no such file or directory; check the path"},
		{"EAB", func(c *ACME) { c.EABKeyFile = file("key", " YWJj_-==\n") }, ""},
		{"empty EAB", func(c *ACME) { c.EABKeyFile = file("blank", "\n") }, "eab_key_file: " + folder + "/blank: holds no key in base64url"},
		{"EAB of the other alphabet", func(c *ACME) { c.EABKeyFile = file("std", "secret+/words") }, "holds no key in base64url"},
		{"missing EAB", func(c *ACME) { c.EABKeyFile = folder + "/none" }, "no such file"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cfg := goodACME()
			cfg.Storage, cfg.EABKeyID = t.TempDir(), "kid"
			cfg.EABKeyFile = file("good", "YWJj")
			tt.change(&cfg)
			_, err := Open(Config{ACME: cfg}, quiet)
			switch {
			case tt.want == "" && err != nil:
				t.Error(err)
			case tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)):
				t.Errorf("%v, want %q", err, tt.want)
			case err != nil && strings.Contains(err.Error(), "secret"):
				t.Errorf("the error holds the secret: %v", err)
			}
		})
	}
}

// What is given to no other user.
func TestStoragePermissions(t *testing.T) {
	storage := newFolder(filepath.Join(t.TempDir(), "new", "storage"))
	try(t, storage.Store(t.Context(), "a/b/c.key", []byte("secret")))
	for name, want := range map[string]os.FileMode{"": 0o700, "a": 0o700, "a/b": 0o700, "a/b/c.key": 0o600} {
		info, err := os.Stat(filepath.Join(storage.path, name))
		try(t, err)
		if got := info.Mode().Perm(); got != want {
			t.Errorf("%q has %o, want %o", name, got, want)
		}
	}
}

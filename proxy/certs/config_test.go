package certs

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
)

func TestValidate(t *testing.T) {
	label := strings.Repeat("a", 63)
	long := strings.Join([]string{label, label, label, label[:61]}, ".") // 253 bytes
	many := make([]string, maxSelfIssued)
	for i := range many {
		many[i] = fmt.Sprintf("n%d.example.org", i)
	}
	names := func(n ...string) Config { return Config{SelfIssued: n} }
	tests := []struct {
		name string
		cfg  Config
		want []string // "key: part of the text" for each fault
	}{
		{"nothing", Config{}, nil},
		{"pair", Config{Files: []FilePair{{"c.pem", "k.pem"}}}, nil},
		{"one file for both", Config{Files: []FilePair{{"both.pem", "both.pem"}}}, nil},
		{"empty paths", Config{Files: []FilePair{{"c.pem", "k.pem"}, {"", ""}}},
			[]string{"files[1].certificate: is empty", "files[1].key: is empty"}},
		{"names", names("localhost", "Relay.Example.ORG", "my_host", "xn--bcher-kva.example", "a-b.c", "1a.2b"), nil},
		{"addresses", names("127.0.0.1", "::1", "2001:db8::1"), nil},
		{"wildcard", names("*.example.org", "*.localhost"), nil},
		{"longest", names(label+".org", long), nil},
		{"as many as fit", Config{SelfIssued: many}, nil},
		{"one more", Config{SelfIssued: append(slices.Clone(many), "one.more")}, []string{"self_issued: has 101 names, allowed are 100"}},
		{"empty name", names("a", ""), []string{`self_issued[1]: "" is neither`}},
		{"dot", names("."), []string{"self_issued[0]: ends in a dot"}},
		{"trailing dot", names("relay.example.org."), []string{"self_issued[0]: ends in a dot"}},
		{"empty label", names("a..b"), []string{"self_issued[0]: is neither"}},
		{"leading dot", names(".a"), []string{"self_issued[0]: is neither"}},
		{"star", names("*"), []string{"self_issued[0]: left-most label"}},
		{"star and dot", names("*."), []string{"self_issued[0]: ends in a dot"}},
		{"star inside", names("a.*.org"), []string{"self_issued[0]: left-most label"}},
		{"part of a label", names("a*.example.org"), []string{"self_issued[0]: left-most label"}},
		{"two stars", names("*.*.org"), []string{"self_issued[0]: left-most label"}},
		{"not ASCII", names("bücher.example"), []string{"self_issued[0]: xn-- form"}},
		{"space", names("a b"), []string{"self_issued[0]: is neither"}},
		{"NUL", names("a\x00b"), []string{"self_issued[0]: is neither"}},
		{"URL", names("https://a.example"), []string{"self_issued[0]: is neither"}},
		{"port", names("a.example:443"), []string{"self_issued[0]: is neither"}},
		{"hyphen first", names("-a.example"), []string{"self_issued[0]: is neither"}},
		{"hyphen last", names("a-.example"), []string{"self_issued[0]: is neither"}},
		{"hyphen at the end", names("a.example-"), []string{"self_issued[0]: is neither"}},
		{"label of 64", names(label + "a.org"), []string{"self_issued[0]: is neither"}},
		{"name of 254", names(long + "a"), []string{"self_issued[0]: is neither"}},
		{"wildcard of 255", names("*." + long), []string{"self_issued[0]: is longer than the 253 bytes"}},
		{"no address", names("1.2.3.400"), []string{"self_issued[0]: is neither"}},
		{"zone", names("fe80::1%eth0"), []string{"self_issued[0]: zone"}},
		{"twice", names("a.b", "c", "A.B"), []string{`self_issued[2]: "A.B" is self_issued[0] already`}},
		{"address twice", names("1.2.3.4", "::ffff:1.2.3.4"), []string{"self_issued[1]: is self_issued[0] already"}},
		{"all in one go", Config{Files: []FilePair{{"", "k"}}, SelfIssued: []string{"*", ".."}},
			[]string{"files[0].certificate: is empty", "self_issued[0]: left-most", "self_issued[1]: ends in a dot"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			err := tt.cfg.Validate()
			var got []error
			if err != nil {
				got = err.(interface{ Unwrap() []error }).Unwrap()
			}
			if len(got) != len(tt.want) {
				t.Fatalf("faults %q, want %q", got, tt.want)
			}
			for i, want := range tt.want {
				key, text, _ := strings.Cut(want, ": ")
				if k := got[i].(interface{ PolicyKey() string }).PolicyKey(); k != key {
					t.Errorf("key %q, want %q", k, key)
				}
				if !strings.Contains(got[i].Error(), text) {
					t.Errorf("fault %q does not hold %q", got[i], text)
				}
			}
			// Whatever passes can be opened, and what does not is refused by Open too.
			if len(tt.cfg.Files) == 0 || err != nil {
				if _, openErr := Open(tt.cfg, slog.New(slog.DiscardHandler)); (openErr == nil) != (err == nil) {
					t.Errorf("Open: %v, Validate: %v", openErr, err)
				} else if err != nil && !strings.Contains(openErr.Error(), strings.SplitN(tt.want[0], ":", 2)[0]+": ") {
					t.Errorf("Open: %q does not name the key", openErr)
				}
			}
		})
	}
}

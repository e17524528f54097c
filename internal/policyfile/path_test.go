package policyfile

import (
	"slices"
	"testing"
)

// Of a text that may be a unix socket, only the path behind the prefix is one.
func TestPathBehindPrefix(t *testing.T) {
	var into struct {
		At []string `key:"at" default:"[]" path:"unix" doc:"where"`
	}
	doc := Parse("/etc/relay/policy.yaml", []byte("at: [\"unix:run/a.sock\", \"unix:/run/b.sock\", \"unix:\", \"127.0.0.1:1\", run/c]\n"), &into)
	if err := doc.Err(); err != nil {
		t.Fatal(err)
	}
	want := []string{"unix:/etc/relay/run/a.sock", "unix:/run/b.sock", "unix:", "127.0.0.1:1", "run/c"}
	if !slices.Equal(into.At, want) {
		t.Errorf("read %q, want %q", into.At, want)
	}
}

package policyfile

import (
	"path/filepath"
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

// A word stands for itself where else a path does; a file of that name is still to
// be had.
func TestWordInThePlaceOfAPath(t *testing.T) {
	type place struct {
		Keep string   `key:"keep" default:"/var" path:"true" word:"cloud" doc:"a folder, or cloud"`
		Also []string `key:"also" default:"[]" path:"true" word:"cloud" doc:"more of them"`
	}
	for written, want := range map[string]string{"cloud": "cloud", "./cloud": "/etc/cloud", "clouds": "/etc/clouds", "/cloud": "/cloud"} {
		var p, beside place
		if err := Parse("p.yaml", []byte("keep: "+written), &beside).Err(); err != nil {
			t.Fatal(err)
		}
		if word := written == "cloud"; (beside.Keep == "cloud") != word || len(Files(&beside)) == 0 != word {
			t.Errorf("beside the file %s is read as %s", written, beside.Keep)
		}
		if err := Parse("/etc/p.yaml", []byte("keep: "+written+"\nalso: ["+written+"]"), &p).Err(); err != nil {
			t.Fatal(err)
		}
		if p.Keep != filepath.FromSlash(want) || p.Also[0] != p.Keep {
			t.Errorf("%s is read as %s and %s", written, p.Keep, p.Also[0])
		}
		files := 2
		if written == "cloud" {
			files = 0
		}
		if got := Files(&p); len(got) != files {
			t.Errorf("%s: files %v", written, got)
		}
	}
}

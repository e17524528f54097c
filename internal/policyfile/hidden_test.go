package policyfile

import (
	"fmt"
	"strings"
	"testing"
)

// pass is a string that shows less than it holds.
type pass string

func (pass) MarshalText() ([]byte, error) { return []byte("[hidden]"), nil }

// A string with MarshalText is read as it stands, and what it holds is told
// nowhere: neither when the policy is shown nor when another one takes its place.
func TestHiddenStrings(t *testing.T) {
	type section struct {
		Word  pass   `key:"word" default:"" doc:"a password"`
		Words []pass `key:"words" default:"[]" doc:"passwords"`
	}
	var a, b section
	for text, s := range map[string]*section{"word: s3cret\nwords: [s3cret]\n": &a, "word: other\nwords: [s3cret]\n": &b} {
		if err := Parse("p.yaml", []byte(text), s).Err(); err != nil {
			t.Fatal(err)
		}
	}
	if a.Word != "s3cret" || len(a.Words) != 1 || a.Words[0] != "s3cret" {
		t.Fatalf("%q is read", a)
	}
	changes := Changes(a, b)
	if len(changes) != 1 || changes[0].Key != "word" {
		t.Errorf("the changes are %v, want that of word", changes)
	}
	if len(Changes(a, a)) != 0 {
		t.Error("what has not changed is told as changed")
	}
	shown := string(Encode(a)) + fmt.Sprint(changes)
	if strings.Contains(shown, "s3cret") || strings.Contains(shown, "other") || strings.Count(shown, "[hidden]") != 4 {
		t.Errorf("it is shown as\n%s", shown)
	}
}

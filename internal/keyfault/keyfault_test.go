package keyfault

import (
	"errors"
	"testing"
)

// A fault reads well alone, and gives the policy file its key and its text apart.
func TestFault(t *testing.T) {
	err := New("addresses[0]", "%w; write %s", errors.New("is no address"), "host:port")
	fault, ok := errors.AsType[*Fault](err)
	if !ok || fault.PolicyKey() != "addresses[0]" || fault.Text != "is no address; write host:port" {
		t.Errorf("%#v", err)
	}
	if got := err.Error(); got != "addresses[0]: is no address; write host:port" {
		t.Errorf("it reads %q", got)
	}
}

// The faults of a section are those of its keys, seen from above.
func TestBelow(t *testing.T) {
	if got := Below("queue", nil); got != nil {
		t.Errorf("%v", got)
	}
	plain := errors.New("of the whole")
	got := Below("queue", errors.Join(New("file", "is %s", "empty"), plain))
	if len(got) != 2 || got[0].Error() != "queue.file: is empty" || got[1] != plain {
		t.Errorf("%v", got)
	}
}

package main

import (
	"io"
	"os"
	"slices"
	"strings"
	"testing"
)

func TestOptions(t *testing.T) {
	ops := []string{"echo64", "paced", "idle"}
	o, err := parseOptions(nil, ops, "/cache")
	if err != nil {
		t.Fatal(err)
	}
	if o.rounds != 5 || !slices.Equal(o.ops, ops) || !slices.Equal(o.peers, []string{"haproxy", "nginx", "hitch", "naive"}) ||
		o.engine != "auto" || o.cache != "/cache" || o.scale != 1 || o.tree != "/" || o.host || o.system || o.out != "" || o.folder != "" {
		t.Errorf("the defaults are %+v", o)
	}
	o, err = parseOptions([]string{"-ops", "paced, echo64,paced", "-peers", "stream", "-rounds", "1", "-scale", "0.5", "-engine", "loop"}, ops, "")
	if err != nil || !slices.Equal(o.ops, []string{"paced", "echo64"}) || !slices.Equal(o.peers, []string{"stream"}) || o.rounds != 1 || o.scale != 0.5 || o.engine != "loop" {
		t.Errorf("%+v, %v", o, err)
	}
}

func TestWrongOptions(t *testing.T) {
	discardUsage(t)
	for _, c := range []struct{ args, want string }{
		{"-ops dance", `-ops: "dance" is none of echo64`},
		{"-peers relayedge", `-peers: "relayedge" is none of haproxy, nginx, hitch, naive, stream`},
		{"-rounds 0", "-rounds: 1 to 100"},
		{"-rounds 101", "-rounds: 1 to 100"},
		{"-scale 0", "-scale: more than 0"},
		{"-scale NaN", "-scale: more than 0"},
		{"-engine fast", `-engine: "fast" is none of auto, loop, stream`},
		{"echo64", `"echo64" is no flag`},
		{"-dance", "not defined"},
	} {
		if _, err := parseOptions(strings.Fields(c.args), []string{"echo64"}, ""); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", c.args, err)
		}
	}
}

// discardUsage keeps what the flag package says out of the test's output.
func discardUsage(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	stderr := os.Stderr
	os.Stderr = w
	done := make(chan struct{})
	go func() {
		defer close(done)
		io.Copy(io.Discard, r)
	}()
	t.Cleanup(func() {
		os.Stderr = stderr
		w.Close()
		<-done
		r.Close()
	})
}

func TestRotated(t *testing.T) {
	all := []int{1, 2, 3}
	for round, want := range [][]int{{1, 2, 3}, {2, 3, 1}, {3, 1, 2}, {1, 2, 3}} {
		if got := rotated(all, round); !slices.Equal(got, want) {
			t.Errorf("round %d: %v", round, got)
		}
	}
	if got := rotated([]int(nil), 3); got != nil {
		t.Errorf("none is %v", got)
	}
}

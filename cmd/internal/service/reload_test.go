package service

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"relayedge/cmd/internal/policy"
	"relayedge/internal/logging"
)

// running is a process that can reload, with nothing behind it.
type running struct {
	*Reloader
	t        *testing.T
	file     string
	log      bytes.Buffer
	prepare  func(next *policy.Policy) (func() []string, error) // nil: what is right
	warnings []string
	applied  *policy.Policy // by the latest apply
}

const startPolicy = `
listeners: [{name: a, bind: "127.0.0.1:1"}]
certificates: {self_issued: [localhost]}
`

func start(t *testing.T, src string) *running {
	t.Helper()
	r := &running{t: t, file: filepath.Join(t.TempDir(), "policy.yaml")}
	r.write(src)
	p, err := LoadPolicy(r.file, (*policy.Policy).NeedEdge)
	if err != nil {
		t.Fatal(err)
	}
	log, finish := logging.New(p.Log, &r.log)
	t.Cleanup(finish)
	r.Reloader = NewReloader(ReloadOptions{
		Command: policy.Edge, File: r.file, InForce: p, Need: (*policy.Policy).NeedEdge, Log: log,
		Prepare: func(next *policy.Policy) (func() []string, error) {
			if r.prepare != nil {
				return r.prepare(next)
			}
			return func() []string { r.applied = next; return r.warnings }, nil
		},
	})
	return r
}

func (r *running) write(src string) {
	r.t.Helper()
	if err := os.WriteFile(r.file, []byte(src), 0o600); err != nil {
		r.t.Fatal(err)
	}
}

// counts checks how many reloads were applied and refused.
func (r *running) counts(applied, refused float64) {
	r.t.Helper()
	got := map[string]float64{}
	r.Family().Read(func(result string, n float64) { got[result] = n })
	if len(got) != 2 || got["applied"] != applied || got["refused"] != refused {
		r.t.Errorf("%v, want applied %v and refused %v", got, applied, refused)
	}
}

// logged takes the lines of the log since the last call.
func (r *running) logged() string {
	defer r.log.Reset()
	return r.log.String()
}

func TestReloadIsPutInForce(t *testing.T) {
	r := start(t, startPolicy)
	r.counts(0, 0)
	was := r.Policy()
	r.write(startPolicy + "limits: {drain_secs: 7}\nengine: stream\nlog: {level: debug}\n")
	o, err := r.Reload(t.Context())
	want := []string{"limits.drain_secs: 30 → 7", "log.level: info → debug",
		"engine: auto → stream: takes a restart; until then the old value is in force"}
	if err != nil || !slices.Equal(o.Lines(), want) {
		t.Errorf("%q, %v", o.Lines(), err)
	}
	if p := r.Policy(); p == was || p != r.applied || p.Limits.DrainSecs != 7 || p.Engine != "auto" {
		t.Errorf("in force: %+v", p)
	}
	if log := r.logged(); strings.Count(log, "\n") != 1 || !strings.Contains(log, "level=INFO") || !strings.Contains(log, `changes=2 changed="limits.drain_secs log.level"`) ||
		!strings.Contains(log, "waiting_for_restart=engine") {
		t.Errorf("log: %s", log)
	}
	if !r.Log.Enabled(t.Context(), slog.LevelDebug) {
		t.Error("log.level is not in force")
	}
	r.counts(1, 0)

	// What waits for a restart is told each time.
	if o, err := r.Reload(t.Context()); err != nil || !slices.Equal(o.Lines(), want[2:]) {
		t.Errorf("%q, %v", o.Lines(), err)
	}
	r.write(startPolicy + "limits: {drain_secs: 7}\nlog: {level: debug}\n")
	if o, err := r.Reload(t.Context()); err != nil || !slices.Equal(o.Lines(), []string{"nothing has changed"}) {
		t.Errorf("%q, %v", o.Lines(), err)
	}
	r.counts(3, 0)

	// So is what to mend.
	r.warnings = []string{"mend this"}
	if o, err := r.Reload(t.Context()); err != nil || !slices.Equal(o.Lines(), []string{"nothing has changed", "warning: mend this"}) {
		t.Errorf("%q, %v", o.Lines(), err)
	}
	if log := r.logged(); !strings.Contains(log, `level=WARN msg="the policy was reloaded, and something is to be mended" warning="mend this"`) {
		t.Errorf("log: %s", log)
	}
}

func TestReloadIsRefused(t *testing.T) {
	fine := func(*policy.Policy) (func() []string, error) { return func() []string { return nil }, nil }
	for _, row := range []struct {
		name    string
		src     string
		prepare func(*policy.Policy) (func() []string, error)
		says    []string
		lines   int // of the log
	}{
		{"faults", startPolicy + "limits: {max_connections: 0, drain_sec: 3}\n", fine,
			[]string{"policy.yaml:4:27: limits.max_connections: 0 is out of range", "policy.yaml:4:30: limits.drain_sec: unknown key"}, 1},
		{"one fault", "limits: {max_connections: 0}\n" + startPolicy, fine, []string{"policy.yaml:1:27: limits.max_connections"}, 1},
		{"nothing to do", "limits: {}\n", fine, []string{"policy.yaml: listeners: none is written"}, 1},
		{"no YAML", "{", fine, []string{"policy.yaml:1"}, 1},
		{"what cannot be built", startPolicy, func(*policy.Policy) (func() []string, error) { return nil, errors.New("the port is taken") }, []string{"the port is taken"}, 1},
		{"what does not fit the old values", startPolicy + "relay: {in_process: true}", fine, []string{"relay.in_process: takes a restart"}, 1},
		{"a fault of the program", startPolicy, func(*policy.Policy) (func() []string, error) { panic("x") }, []string{"a fault of the program"}, 2},
	} {
		t.Run(row.name, func(t *testing.T) {
			r := start(t, startPolicy)
			was := r.Policy()
			r.write(row.src)
			r.prepare = row.prepare
			o, err := r.Reload(t.Context())
			if err == nil || o.Changed != nil || o.Restart != nil || r.Policy() != was {
				t.Fatalf("%+v, %v, in force %p", o, err, r.Policy())
			}
			log := r.logged()
			for _, says := range append(row.says, "verything stays as it was") {
				if !strings.Contains(err.Error(), says) || !strings.Contains(log, says) {
					t.Errorf("no %q in\n%v\nlog: %s", says, err, log)
				}
			}
			if strings.Count(log, "level=ERROR") != row.lines || strings.Count(log, "\n") != row.lines {
				t.Errorf("log: %s", log)
			}
			r.counts(0, 1)

			// And the next one is taken.
			r.prepare = nil
			r.write(startPolicy + "limits: {drain_secs: 7}")
			if _, err := r.Reload(t.Context()); err != nil || r.Policy().Limits.DrainSecs != 7 {
				t.Errorf("after that: %v", err)
			}
			r.counts(1, 1)
		})
	}
	t.Run("no file any more", func(t *testing.T) {
		r := start(t, startPolicy)
		os.Remove(r.file)
		if _, err := r.Reload(t.Context()); !errors.Is(err, os.ErrNotExist) {
			t.Error(err)
		}
	})
	t.Run("never a file", func(t *testing.T) {
		r := start(t, startPolicy)
		r.File = ""
		if _, err := r.Reload(t.Context()); err == nil || !strings.Contains(err.Error(), "without a policy file") {
			t.Error(err)
		}
	})
	t.Run("a fault half way", func(t *testing.T) {
		r := start(t, startPolicy)
		r.prepare = func(*policy.Policy) (func() []string, error) { return func() []string { panic("x") }, nil }
		_, err := r.Reload(t.Context())
		if err == nil || strings.Contains(err.Error(), "stays as it was") || !strings.Contains(err.Error(), "in part: restart") || !strings.Contains(r.logged(), "in part: restart") {
			t.Error(err)
		}
		r.counts(0, 1)
	})
}

// A file that is read again is looked at too, not only its name.
func TestReloadTellsOfFiles(t *testing.T) {
	r := start(t, startPolicy+"limits: {deny_file: denied.txt}\n")
	denied := filepath.Join(filepath.Dir(r.file), "denied.txt")
	reload := func() []string {
		t.Helper()
		o, err := r.Reload(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return o.Lines()
	}
	write := func(s string) {
		if err := os.WriteFile(denied, []byte(s), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("192.0.2.1\n")
	reload() // the start had none
	write("192.0.2.2\n")
	if got := reload(); !slices.Equal(got, []string{"limits.deny_file: the content of the file has changed"}) {
		t.Errorf("%q", got)
	}
	if got := reload(); !slices.Equal(got, []string{"nothing has changed"}) {
		t.Errorf("%q", got)
	}
	// A reload that is refused has read nothing.
	write("192.0.2.3\n")
	r.prepare = func(*policy.Policy) (func() []string, error) { return nil, errors.New("no") }
	r.Reload(t.Context())
	r.prepare = nil
	if got := reload(); !slices.Equal(got, []string{"limits.deny_file: the content of the file has changed"}) {
		t.Errorf("%q", got)
	}
}

// One reload at a time; who waits can give up; the end waits for one that runs.
func TestReloadsTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, startPolicy)
		var inside atomic.Int32
		r.prepare = func(*policy.Policy) (func() []string, error) {
			if inside.Add(1) != 1 {
				t.Error("two at once")
			}
			time.Sleep(time.Second)
			return func() []string { inside.Add(-1); return nil }, nil
		}
		begin := time.Now()
		var all sync.WaitGroup
		for range 5 {
			all.Go(func() {
				if _, err := r.Reload(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second/2)
		defer cancel()
		if _, err := r.Reload(ctx); !errors.Is(err, context.DeadlineExceeded) || time.Since(begin) != time.Second/2 {
			t.Errorf("%v after %v", err, time.Since(begin))
		}
		all.Wait()
		if time.Since(begin) != 5*time.Second {
			t.Errorf("five took %v", time.Since(begin))
		}
		all.Go(func() { r.Reload(t.Context()) })
		synctest.Wait()
		r.Stop()
		if time.Since(begin) != 6*time.Second {
			t.Errorf("the end did not wait: %v", time.Since(begin))
		}
		if _, err := r.Reload(t.Context()); err == nil || !strings.Contains(err.Error(), "draining") {
			t.Errorf("after the end: %v", err)
		}
		all.Wait()
	})
}

package service

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"runtime/debug"
	"strings"
	"sync/atomic"

	"relayedge/cmd/internal/policy"
	"relayedge/internal/control"
	"relayedge/internal/logging"
	"relayedge/internal/policyfile"
	"relayedge/internal/sdnotify"
	"relayedge/internal/telemetry"
)

// ReloadOptions are what a Reloader works with.
type ReloadOptions struct {
	Command policy.Command
	File    string         // empty: the process runs without one, and every reload is refused
	InForce *policy.Policy // that the process was started with
	Need    func(*policy.Policy) error
	// Prepare builds all that the next policy takes and changes nothing yet; then
	// apply swaps it in, which cannot fail, and says what the operator should mend all
	// the same. Keys that take a restart have their old values in next. Calls never
	// overlap.
	Prepare func(next *policy.Policy) (apply func() (warnings []string), err error)
	// Answers are what the control socket answers beside reloads.
	Answers control.Answers
	Log     *slog.Logger      // its level follows log.level
	Manager *sdnotify.Manager // is told of each reload; nil: there is none
}

// Reloader puts a changed policy file in force, or leaves everything as it was.
type Reloader struct {
	ReloadOptions

	path             string // of File, from the root
	inForce          atomic.Pointer[policy.Policy]
	applied, refused atomic.Uint64

	// turn holds one element, for whoever reloads: who waits can give up.
	turn chan struct{}
	// Owned by whoever has the turn.
	contents contents
	stopped  bool
}

// NewReloader returns a Reloader of a process that has just started.
func NewReloader(o ReloadOptions) *Reloader {
	r := &Reloader{ReloadOptions: o, turn: make(chan struct{}, 1), contents: contentsOf(o.Command.Files(o.InForce))}
	if o.File != "" {
		r.path, _ = filepath.Abs(o.File) // which fails where there is no working directory: then nobody can name the file
	}
	r.inForce.Store(o.InForce)
	return r
}

// Policy returns the policy in force. Keys that take a restart have the values
// of the start in it, whatever the file says.
func (r *Reloader) Policy() *policy.Policy { return r.inForce.Load() }

// Outcome is what a reload has done.
type Outcome struct {
	Changed []policyfile.Change `json:"changed,omitempty"` // is in force
	Restart []policyfile.Change `json:"restart,omitempty"` // is in the file, and waits for a restart

	Warnings []string `json:"warnings,omitempty"` // what to mend though nothing was refused for it
}

// Lines tells it to an operator, one line a key.
func (o Outcome) Lines() (lines []string) {
	for _, c := range o.Changed {
		lines = append(lines, c.String())
	}
	for _, c := range o.Restart {
		lines = append(lines, c.String()+": takes a restart; until then the old value is in force")
	}
	if len(lines) == 0 {
		lines = append(lines, "nothing has changed")
	}
	for _, w := range o.Warnings {
		lines = append(lines, "warning: "+w)
	}
	return lines
}

// Refusal is why a policy was not put in force.
type Refusal struct {
	Cause error
	// Half says that a fault of the program came while the policy was being put in force.
	Half bool
}

func (e *Refusal) Error() string {
	if e.Half {
		return e.Cause.Error() + "\nThe new policy may be in force in part: restart."
	}
	return e.Cause.Error() + "\n" + unchanged
}

const unchanged = "Everything stays as it was."

func (e *Refusal) Unwrap() error { return e.Cause }

// Reload reads the file again and puts what it says in force, or nothing of it.
// One reload runs at a time; ctx ends the wait for it. The error is a *Refusal.
// Either way it is logged and counted.
func (r *Reloader) Reload(ctx context.Context) (Outcome, error) {
	select {
	case r.turn <- struct{}{}:
	case <-ctx.Done():
		return r.tell(Outcome{}, &Refusal{Cause: ctx.Err()})
	}
	defer func() { <-r.turn }()
	if r.stopped {
		return r.tell(r.reload()) // the manager has been told of the end, which nothing takes back
	}
	notified := r.Manager.Reloading()
	o, err := r.tell(r.reload())
	status := "serving, with the policy as it was read again"
	if err != nil {
		status = "serving; the last reload was refused, the log says why"
	}
	if notified = errors.Join(notified, r.Manager.Ready(status)); notified != nil {
		r.Log.Warn("the service manager cannot be told of a reload", "error", notified)
	}
	return o, err
}

// Hold has no reload begin until release, and waits for one that runs,
// until ctx ends.
func (r *Reloader) Hold(ctx context.Context) (release func(), err error) {
	select {
	case r.turn <- struct{}{}:
		return func() { <-r.turn }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Stop refuses every later reload, with the words that the process is ending. It
// waits for one that runs.
func (r *Reloader) Stop() {
	r.turn <- struct{}{}
	r.stopped = true
	<-r.turn
}

func (r *Reloader) reload() (Outcome, error) {
	refuse := func(err error) (Outcome, error) { return Outcome{}, &Refusal{Cause: err} }
	switch {
	case r.stopped:
		return refuse(errors.New("the process is draining and ends soon"))
	case r.File == "":
		return refuse(errors.New("the process runs without a policy file, so there is nothing to reload; write one and restart with -c FILE"))
	}
	read, err := LoadPolicy(r.File, r.Need)
	if err != nil {
		return refuse(err)
	}
	inForce := r.Policy()
	var o Outcome
	o.Changed, o.Restart = r.Command.Changes(inForce, read)
	next, err := r.Command.Next(inForce, read)
	if err != nil {
		return refuse(err)
	}
	// Taken before the files are read for the policy: what changes in between shows
	// as a change at the next reload, and is never missed.
	contents := contentsOf(r.Command.Files(next))
	o.Changed = append(o.Changed, r.contents.changes(contents)...)

	apply, err := r.prepare(next)
	if err != nil {
		return refuse(err)
	}
	err = r.guard(func() error {
		o.Warnings = apply()
		return nil
	})
	if err != nil {
		return Outcome{}, &Refusal{err, true}
	}
	logging.SetLevel(r.Log, next.Log.Level)
	r.inForce.Store(next)
	r.contents = contents
	return o, nil
}

func (r *Reloader) prepare(next *policy.Policy) (apply func() []string, err error) {
	err = r.guard(func() (err error) {
		apply, err = r.Prepare(next)
		return err
	})
	return apply, err
}

// guard turns a panic into an error: the service goes on.
func (r *Reloader) guard(f func() error) (err error) {
	defer func() {
		if fault := recover(); fault != nil {
			r.Log.Error("a reload panicked", "panic", fault, "stack", string(debug.Stack()))
			err = errors.New("a fault of the program; its log has more")
		}
	}()
	return f()
}

// tell logs what became of a reload, and counts it.
func (r *Reloader) tell(o Outcome, err error) (Outcome, error) {
	if err == nil {
		r.applied.Add(1)
		attrs := []any{"changes", len(o.Changed)}
		if len(o.Changed) > 0 {
			attrs = append(attrs, "changed", keysOf(o.Changed))
		}
		if len(o.Restart) > 0 {
			attrs = append(attrs, "waiting_for_restart", keysOf(o.Restart))
		}
		r.Log.Info("the policy was reloaded", attrs...)
		for _, w := range o.Warnings {
			r.Log.Warn("the policy was reloaded, and something is to be mended", "warning", w)
		}
		return o, nil
	}
	r.refused.Add(1)
	message := "the policy was not reloaded: everything stays as it was"
	refusal, _ := errors.AsType[*Refusal](err)
	if refusal.Half {
		message = "the policy was reloaded in part: restart"
	}
	// One line, however many faults: lines of one kind are folded when they are many.
	r.Log.Error(message, "error", OneLine(refusal.Cause))
	return o, err
}

// OneLine is an error on one line of a log.
func OneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }

// keysOf names the keys of changes, of very many the first.
func keysOf(changes []policyfile.Change) string {
	const most = 50
	var keys []string
	for _, c := range changes[:min(len(changes), most)] {
		keys = append(keys, c.Key)
	}
	if len(changes) > most {
		keys = append(keys, "…")
	}
	return strings.Join(keys, " ")
}

// Family counts the reloads by what became of them.
func (r *Reloader) Family() telemetry.Family {
	return telemetry.Family{
		Name: "reloads_total", Help: "Reloads of the policy since the start, by what became of them.", Kind: telemetry.Counter, Label: "result",
		Read: func(emit func(string, float64)) {
			emit("applied", float64(r.applied.Load()))
			emit("refused", float64(r.refused.Load()))
		},
	}
}

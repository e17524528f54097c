package redisstore

import (
	"context"
	"strconv"
	"sync/atomic"
	"time"

	"relayedge/admission"
)

// messagesTag keeps every key of message limits in one slot of a cluster: a
// message's decision is one on its sender and on all together.
const messagesTag = "{messages}"

// LocalMessages are what decides while the store is away, as *admission.MessageLimits.
type LocalMessages interface {
	admission.Messages
	SetLimits(admission.MessageLimitsConfig) error
}

// Messages are admission.Messages in the store. Make them with [Store.Messages].
type Messages struct {
	// Static.
	store         *Store
	prefix        string
	lengths       admission.MessageLengths
	global, reads []string // keys
	local         LocalMessages

	inForce atomic.Pointer[messageRules]
}

// messageRules are limits as the script is told.
type messageRules struct {
	senders, readers []counted // the windows that a decision can name, in the script's order
	peek, take, read []string  // arguments
}

// counted is a window that a decision can name.
type counted struct {
	scope  admission.Scope
	window admission.Window
	limit  int64
}

// tally is what the script is told of one bucket and two slides.
type tally struct {
	scope             admission.Scope
	minute, hour, day int
}

// Messages returns message limits that count in the store, together with those of
// every process that has the same prefix there. c is valid; the lengths are those
// of admission.NewMessageLimits, in whole milliseconds. local decides while the
// store is away, unless on_failure says refuse; it has the same limits.
func (s *Store) Messages(c admission.MessageLimitsConfig, lengths admission.MessageLengths, local LocalMessages) *Messages {
	m := &Messages{store: s, prefix: s.cfg.Prefix + ":" + messagesTag + ":", lengths: lengths.OrReal(), local: local}
	m.global, m.reads = m.keys("global"), m.keys("reads")
	m.inForce.Store(newMessageRules(c, m.lengths))
	return m
}

// SetLimits changes the limits. What was counted stays. Processes that count
// together should get them together: each decides by the limits of its own. It
// returns the error of c.Validate and then changes nothing.
func (m *Messages) SetLimits(c admission.MessageLimitsConfig) error {
	if err := m.local.SetLimits(c); err != nil {
		return err
	}
	m.inForce.Store(newMessageRules(c, m.lengths))
	return nil
}

func newMessageRules(c admission.MessageLimitsConfig, lengths admission.MessageLengths) *messageRules {
	part, hostMinute := c.ReadShares()
	sender := tally{admission.ScopeSender, c.Sender.Minute, c.Sender.Hour, c.Sender.Day}
	global := tally{admission.ScopeGlobal, c.Global.Minute, c.Global.Hour, c.Global.Day}
	reads := tally{admission.ScopeGlobal, part.Minute, part.Hour, part.Day}
	host := tally{scope: admission.ScopeHost, minute: hostMinute}

	r := new(messageRules)
	var told []string
	r.senders, told = rules(lengths, sender, global)
	r.peek, r.take = arguments(false, told, lengths), arguments(true, told, lengths)
	r.readers, told = rules(lengths, host, reads, global)
	r.read = arguments(true, told, lengths)
	return r
}

// keys are those of one tally.
func (m *Messages) keys(name string) []string {
	name = m.prefix + name
	return []string{name, name + ":hour", name + ":day"}
}

// arguments puts what a script does before its rules, and behind them the longest
// life that a key can have.
func arguments(charge bool, rules []string, lengths admission.MessageLengths) []string {
	op := "0"
	if charge {
		op = "1"
	}
	life := max(lengths.Minute, lengths.Hour, lengths.Day)
	return append(append([]string{op}, rules...), whole(life.Milliseconds()+2))
}

func whole(n int64) string { return strconv.FormatInt(n, 10) }

const (
	// exact is the highest limit for which each message's time is kept, and
	// hourSteps and daySteps are how many steps a window is cut into where it is not:
	// as in admission.MessageLimits.
	exact     = 4096
	hourSteps = 60
	daySteps  = 96
)

// rules lays tallies out for the script.
func rules(lengths admission.MessageLengths, tallies ...tally) (windows []counted, told []string) {
	for _, t := range tallies {
		minute, cost := int64(t.minute), int64(0)
		if minute > 0 {
			cost = (int64(lengths.Minute) + minute - 1) / minute
		}
		told = append(told, whole(minute), whole(cost), whole(cost*max(0, minute)), whole(lengths.Minute.Milliseconds()))
		for _, w := range []struct {
			limit  int
			length time.Duration
			steps  int64
		}{{t.hour, lengths.Hour, hourSteps}, {t.day, lengths.Day, daySteps}} {
			length, step := w.length.Milliseconds(), int64(0)
			if w.limit > exact {
				step = max(1, length/w.steps)
			}
			told = append(told, whole(int64(w.limit)), whole(length), whole(step))
		}
		windows = append(windows,
			counted{t.scope, admission.Minute, minute},
			counted{t.scope, admission.Hour, int64(t.hour)},
			counted{t.scope, admission.Day, int64(t.day)})
	}
	return windows, told
}

// Peek implements [admission.Messages].
func (m *Messages) Peek(ctx context.Context, sender admission.Key, now time.Time) admission.Decision {
	in := m.inForce.Load()
	d, ok := m.decide(ctx, in.senders, in.peek, now, m.keys("sender:"+sender.String()), m.global)
	if !ok {
		return m.local.Peek(ctx, sender, now)
	}
	return d
}

// Take implements [admission.Messages].
func (m *Messages) Take(ctx context.Context, sender admission.Key, now time.Time) admission.Decision {
	in := m.inForce.Load()
	d, ok := m.decide(ctx, in.senders, in.take, now, m.keys("sender:"+sender.String()), m.global)
	if !ok {
		return m.local.Take(ctx, sender, now)
	}
	return d
}

// Read implements [admission.Messages].
func (m *Messages) Read(ctx context.Context, host admission.Key, now time.Time) admission.Decision {
	in := m.inForce.Load()
	d, ok := m.decide(ctx, in.readers, in.read, now, m.keys("reader:"+host.String()), m.reads, m.global)
	if !ok {
		return m.local.Read(ctx, host, now)
	}
	return d
}

// decide has the store decide; it returns false where that is for this process.
func (m *Messages) decide(ctx context.Context, windows []counted, args []string, now time.Time, tallies ...[]string) (admission.Decision, bool) {
	keys := make([]string, 0, 3*len(tallies))
	for _, t := range tallies {
		keys = append(keys, t...)
	}
	answer, err := m.store.decide(ctx, m.store.messages, keys, args, 6)
	if err != nil {
		if m.store.degrade(MessageLimits) {
			return m.store.unavailable(0, now), true
		}
		return admission.Decision{}, false
	}
	off, wait, named, left, reset, at := answer[0], answer[1], answer[2], answer[3], answer[4], answer[5]
	if off == 1 || named < 0 || named >= int64(len(windows)) {
		return admission.Decision{Allowed: true, Reset: time.UnixMicro(at)}, true
	}
	w := windows[named]
	return admission.Decision{
		Allowed:    wait == 0,
		Limit:      w.limit,
		Remaining:  left,
		Reset:      time.UnixMicro(at + reset),
		RetryAfter: time.Duration(wait) * time.Microsecond,
		Scope:      w.scope,
		Window:     w.window,
	}, true
}

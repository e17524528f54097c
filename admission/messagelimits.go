package admission

import (
	"context"
	"slices"
	"sync"
	"time"
)

const (
	// senderRows is how many senders a MessageLimits counts apart, and readerRows
	// how many reading hosts.
	senderRows = 1 << 17
	readerRows = 1 << 16
	// senderTimes is how many times of messages are kept of all senders together.
	// Beyond them those who go on get their windows in coarse steps, and newcomers share.
	senderTimes = 1 << 22
	// longestWindow is what the lengths may be at most: an entry of a slide does
	// not tell times apart that are more than 24 days from each other.
	longestWindow = 7 * 24 * time.Hour
)

// MessageLimits is [Messages] in the memory of this process.
//
// It follows the monotonic reading of the times that it is given. What is allowed
// names the window with the least left, and as its Reset when all of what is
// counted there will be gone, this message included once it is charged. What is refused names the full window that resets
// last; RetryAfter is when it has room again, if nobody else takes that, and Reset
// the same by the wall clock of the request that asks. A limit of -1 is a window
// that is always full and resets one length from now.
//
// Up to a limit of 4,096 an hour or a day is exact to the millisecond: it remembers
// when each message came. Above, it counts in steps of a minute in the hour and of a
// quarter of an hour in the day (a 60th and a 96th of the length), of which each
// leaves the window as a whole, when its last message does. So no window of that
// length ever holds more than its limit, and a step at most is given away.
//
// Reads are held to [MessageLimitsConfig.ReadShares] and to the global limits, on
// which they draw. A part that is full is told as the global scope with the part
// as its limit, a host's share as the host's scope.
//
// It counts 131,072 senders and 65,536 reading hosts apart, and keeps the times of
// 4,194,304 messages. A sender takes about 270 bytes with its first four messages,
// and 8 to 12 for each further one in the hour and in the day. Where the times run
// out, those who go on count in steps of an eighth of the window. All of it is at
// most about 120 MB. Senders that come when as many count, or no times are left,
// share 256 rows of a sender's limits; nobody's row is given up for them. A sender
// is forgotten when the longest of its windows is over; each request drops up to
// eight of those, and [MessageLimits.Senders] all.
type MessageLimits struct {
	lengths MessageLengths // static

	mu sync.Mutex
	// Guarded by mu.
	rules   messageRules
	clock   stopwatch
	senders roster[tally]
	times   int // entries that all senders' slides have room for
	most    int // of times
	readers roster[tokens]
	global  tally
	reads   tally // the global limits' part of them
	apart   int   // entries of global and reads
}

// tallyRules is what a tally is held to.
type tallyRules struct {
	minute, length int64 // the limit of the bucket, and the length of a minute
	hour, day      slideRule
}

// life returns how long what was charged can count.
func (r *tallyRules) life() int64 {
	life := r.length
	if r.minute > 0 {
		life = paceOf(r.minute, r.length).burst
	}
	for _, s := range []slideRule{r.hour, r.day} {
		if s.limit != 0 {
			life = max(life, s.length+millisecond)
		}
	}
	return life
}

// tally is what one sender, or all together, had accepted.
type tally struct {
	minute    tokens
	hour, day slide
}

func (t *tally) judge(v *verdict, scope Scope, r *tallyRules, at int64) {
	v.bucket(scope, r.minute, r.length, t.minute, at)
	v.slide(scope, Hour, r.hour, &t.hour, at)
	v.slide(scope, Day, r.day, &t.day, at)
}

// charge counts one message that judge has found no window full for.
func (t *tally) charge(r *tallyRules, at int64, coarse bool, held *int) {
	if r.minute > 0 {
		t.minute.take(paceOf(r.minute, r.length), at)
	}
	if r.hour.limit > 0 {
		t.hour.add(r.hour, at, coarse, held)
	}
	if r.day.limit > 0 {
		t.day.add(r.day, at, coarse, held)
	}
}

// NewMessageLimits returns the error of c.Validate, or message limits with
// windows of those lengths; the zero MessageLengths are the real ones. It panics
// on lengths that are negative or over a week.
func NewMessageLimits(c MessageLimitsConfig, lengths MessageLengths) (*MessageLimits, error) {
	lengths = lengths.OrReal()
	for _, l := range []time.Duration{lengths.Minute, lengths.Hour, lengths.Day} {
		if l < 0 || l > longestWindow {
			panic("admission: a window of message limits lasts a week at most")
		}
	}
	m := &MessageLimits{lengths: lengths, most: senderTimes}
	m.senders = roster[tally]{
		bound: senderRows,
		full:  m.timesAreOut,
		forget: func(t *tally) {
			t.hour.reset(&m.times)
			t.day.reset(&m.times)
		},
		clone: func(t *tally) tally {
			c := *t
			c.hour.ring, c.day.ring = slices.Clone(c.hour.ring), slices.Clone(c.day.ring)
			m.times += len(c.hour.ring) + len(c.day.ring)
			return c
		},
	}
	m.readers = roster[tokens]{bound: readerRows}
	if err := m.SetLimits(c); err != nil {
		return nil, err
	}
	return m, nil
}

// SetLimits puts c in force. What was counted stays; a window that is off counts
// nothing meanwhile. It returns the error of c.Validate and then changes
// nothing. UnprovenPerHostMinute is a [Throttle]'s to follow.
func (m *MessageLimits) SetLimits(c MessageLimitsConfig) error {
	if err := c.Validate(); err != nil {
		return err
	}
	rules := newMessageRules(c, m.lengths)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.rules = rules
	m.senders.life, m.readers.life = rules.senderLife, rules.hostLife
	return nil
}

// Peek says what Take would, and spends nothing.
func (m *MessageLimits) Peek(_ context.Context, sender Key, now time.Time) Decision {
	m.mu.Lock()
	defer m.mu.Unlock()
	v := m.judge(sender, m.clock.read(now))
	return v.decision(now)
}

// Take charges one message to the sender and to all, or to neither.
func (m *MessageLimits) Take(_ context.Context, sender Key, now time.Time) Decision {
	m.mu.Lock()
	defer m.mu.Unlock()
	at := m.clock.read(now)
	m.senders.sweep(at, sweepKeys)
	v := m.judge(sender, at)
	if v.wait > 0 {
		return v.decision(now)
	}
	if m.rules.counted {
		row := m.senders.open(sender, at)
		row.held.charge(&m.rules.sender, at, m.timesAreOut(), &m.times)
		m.senders.renew(row, at)
	}
	m.global.charge(&m.rules.global, at, false, &m.apart)
	v.spend()
	return v.decision(now)
}

func (m *MessageLimits) timesAreOut() bool { return m.times >= m.most }

func (m *MessageLimits) judge(sender Key, at int64) verdict {
	v, none := newVerdict(), tally{}
	t := &none
	if row := m.senders.find(sender, at); row != nil {
		t = &row.held
	}
	t.judge(&v, ScopeSender, &m.rules.sender, at)
	m.global.judge(&v, ScopeGlobal, &m.rules.global, at)
	return v
}

// Read charges one public read to the host's share, to the reads' part of the
// global limits and to those themselves, or to none of them.
func (m *MessageLimits) Read(_ context.Context, host Key, now time.Time) Decision {
	m.mu.Lock()
	defer m.mu.Unlock()
	at := m.clock.read(now)
	m.readers.sweep(at, sweepKeys)
	v, bucket := newVerdict(), tokens(0)
	if row := m.readers.find(host, at); row != nil {
		bucket = row.held
	}
	share, length := m.rules.hostReads, m.rules.global.length
	v.bucket(ScopeHost, share, length, bucket, at)
	m.reads.judge(&v, ScopeGlobal, &m.rules.reads, at)
	m.global.judge(&v, ScopeGlobal, &m.rules.global, at)
	if v.wait > 0 {
		return v.decision(now)
	}
	if share > 0 {
		row := m.readers.open(host, at)
		row.held.take(paceOf(share, length), at)
		m.readers.renew(row, at)
	}
	m.reads.charge(&m.rules.reads, at, false, &m.apart)
	m.global.charge(&m.rules.global, at, false, &m.apart)
	v.spend()
	return v.decision(now)
}

// Senders drops the senders of whom nothing counts any longer and returns how many are left.
func (m *MessageLimits) Senders(now time.Time) int {
	return countRows(&m.mu, &m.clock, &m.senders, now)
}

// Readers does the same for the hosts that read.
func (m *MessageLimits) Readers(now time.Time) int {
	return countRows(&m.mu, &m.clock, &m.readers, now)
}

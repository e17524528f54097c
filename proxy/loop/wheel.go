package loop

import (
	"math/bits"
	"time"
)

const (
	tick = time.Millisecond

	slotBits = 6 // a bitmap of the slots of a level is one word
	slots    = 1 << slotBits
	levels   = 5 // 64 ms, 4.1 s, 262 s, 4.7 h, 12.4 days
	span     = 1 << (slotBits * levels)

	dueSlot = levels * slots // what Advance has found due and not told yet
)

// Expirer is told when its timer is due.
type Expirer interface{ Expire() }

// Timer is a moment in a Wheel. Its zero value is not set. It lies in what it
// times; while it is set it must not be copied, and belongs to one wheel.
type Timer struct {
	Owner Expirer // must be there before Set

	next, prev *Timer // the ring of a slot's timers, in the order they came
	at         int64  // in ticks since the wheel's start
	slot       uint16 // index in Wheel.slots plus 1; 0: not set
}

// Wheel keeps any number of timers, to the millisecond, without allocation, and
// sets or clears each in constant time. It is for one goroutine. Its zero value
// is ready, and stands at time 0.
//
// Each level has 64 slots, a slot of one level being as long as all of the level
// below. A timer goes into the lowest level that reaches it, and when time comes
// to where its slot begins, into a lower one: it cascades. What lies beyond the
// top level waits in its last slot and is placed again from there.
//
// Slots of level 0 hold one tick each, of which that of the present is for what
// was set to a moment that had come. The others hold what begins after the
// present: where a slot could stand for the present or for one turn of the wheel
// later, it is the latter.
type Wheel struct {
	now   time.Duration
	here  int64          // now in whole ticks; inside collect on its way there
	used  [levels]uint64 // a bit for each slot that is not empty
	slots [dueSlot + 1]*Timer
}

// IsSet reports whether the timer waits. It does not once Expire is called.
func (t *Timer) IsSet() bool { return t.slot != 0 }

// Set has the timer expire at a moment since the wheel's start, whether or not it
// was set before: by the first Advance to that moment's millisecond, rounded up.
// A moment that has come already, by the time of the last Advance, is met by the
// next Advance, whenever that is.
func (w *Wheel) Set(t *Timer, at time.Duration) {
	w.Clear(t)
	t.at = w.here
	if at > w.now {
		t.at = int64(at / tick)
		if at%tick != 0 {
			t.at++
		}
	}
	w.place(t)
}

// Clear takes the timer out: it does not expire. It need not be set.
func (w *Wheel) Clear(t *Timer) {
	if t.slot == 0 {
		return
	}
	i := int(t.slot) - 1
	if t.next == t {
		w.slots[i] = nil
		if i != dueSlot {
			w.used[i/slots] &^= 1 << (i % slots)
		}
	} else {
		t.prev.next, t.next.prev = t.next, t.prev
		if w.slots[i] == t {
			w.slots[i] = t.next
		}
	}
	t.next, t.prev, t.slot = nil, nil, 0
}

// Next returns when Advance is next needed, false if no timer is set. That is when
// the first timer expires if it was set no more than 63 ms ahead, or an earlier
// moment, at which timers cascade that were set further ahead, and after which
// Next is to be asked again: at most 4 times for a timer up to 12 days away. It is
// never before the time of the last Advance.
func (w *Wheel) Next() (at time.Duration, ok bool) {
	if w.slots[dueSlot] != nil {
		return w.now, true
	}
	first, ok := w.next()
	if !ok {
		return 0, false
	}
	return max(w.now, time.Duration(first)*tick), true
}

// Advance tells the time, and calls Expire of each timer that is due, in the
// order of their milliseconds. Expire may set and clear any timer. What it sets
// to a moment that is not after now waits for the next Advance, so that Advance
// comes to an end whatever is set. Time does not go back: an earlier now counts
// as the latest that was told.
func (w *Wheel) Advance(now time.Duration) {
	w.now = max(w.now, now)
	w.collect(int64(w.now / tick))
	for {
		t := w.slots[dueSlot]
		if t == nil {
			return
		}
		w.Clear(t)
		t.Owner.Expire()
	}
}

// collect moves the wheel to a tick and what is due by then, in order, to
// dueSlot. Nothing is told meanwhile: while Expire runs, the wheel stands at its
// time already.
func (w *Wheel) collect(end int64) {
	for {
		first, ok := w.next()
		if !ok || first > end {
			break
		}
		w.here = first
		for level := 1; level < levels && first&(1<<(level*slotBits)-1) == 0; level++ {
			i := slotOf(level, first)
			for t := w.slots[i]; t != nil; t = w.slots[i] {
				w.Clear(t)
				w.place(t)
			}
		}
		i := slotOf(0, first)
		for t := w.slots[i]; t != nil; t = w.slots[i] {
			w.Clear(t)
			w.link(t, dueSlot)
		}
	}
	w.here = end
}

// next returns the tick at which the first slot that is not empty begins.
func (w *Wheel) next() (first int64, ok bool) {
	for level, used := range w.used {
		if used == 0 {
			continue
		}
		shift := level * slotBits
		from := w.here >> shift
		if level > 0 {
			from++
		}
		ahead := bits.TrailingZeros64(bits.RotateLeft64(used, -int(from%slots)))
		begins := (from + int64(ahead)) << shift
		if !ok || begins < first {
			first, ok = begins, true
		}
	}
	return first, ok
}

// place links a timer that is not set into the slot for its moment, which is not
// before the wheel's.
func (w *Wheel) place(t *Timer) {
	ahead := min(t.at-w.here, span-1)
	level := 0
	if ahead >= slots {
		level = (bits.Len64(uint64(ahead)) - 1) / slotBits
	}
	i := slotOf(level, w.here+ahead)
	w.used[level] |= 1 << (i % slots)
	w.link(t, i)
}

// slotOf is the index of the slot that a tick falls into.
func slotOf(level int, at int64) int {
	return level*slots + int(at>>(level*slotBits)%slots)
}

// link appends a timer to a slot.
func (w *Wheel) link(t *Timer, i int) {
	t.slot = uint16(i + 1)
	head := w.slots[i]
	if head == nil {
		t.next, t.prev = t, t
		w.slots[i] = t
		return
	}
	t.next, t.prev = head, head.prev
	head.prev.next, head.prev = t, t
}

package admission

const (
	// slideExact is the highest limit for which a sliding window remembers the
	// time of each message.
	slideExact = 4096
	// hourSteps and daySteps are how many steps a window is cut into where it
	// does not: of a minute, and of a quarter of an hour.
	hourSteps = 60
	daySteps  = 96
	// coarseSteps is the same for a sender when no more times can be kept.
	coarseSteps = 8

	millisecond = 1_000_000 // nanoseconds
)

// slideRule is what a sliding window is held to: at most limit in any length.
type slideRule struct {
	limit, length int64
	steps         int64 // into which the length is cut where the times are not kept one by one
}

// slide remembers what a sliding window has admitted, oldest first. Times are
// rounded up to the millisecond, and what comes within one step counts as if it
// had come with the last of it: whatever is rounded stays in the window longer
// than it should, so that no window ever holds more than its limit. The zero slide is empty.
type slide struct {
	ring       []arrival
	head, used int32
	begun      uint32 // when the newest entry's first message came, as arrival.ms
	last       int64  // when the latest message came
	total      int64
}

// arrival is one entry: n messages that count as of one time, in milliseconds of
// the stopwatch modulo 2³². An entry is looked at within days, so no time is
// taken for another.
type arrival struct{ ms, n uint32 }

// arrivalAt is the entry of one message.
func arrivalAt(at int64) arrival {
	return arrival{uint32((at + millisecond - 1) / millisecond), 1}
}

// leaves returns when a is out of a window of that length.
func (a arrival) leaves(length, at int64) int64 {
	now := at / millisecond
	return (now-int64(int32(uint32(now)-a.ms)))*millisecond + length
}

func (s *slide) entry(i int32) *arrival {
	i += s.head
	if n := int32(len(s.ring)); i >= n {
		i -= n
	}
	return &s.ring[i]
}

// wait returns how long it takes until the window has room for one more, 0 if it has.
func (s *slide) wait(r slideRule, at int64) int64 {
	s.pass(r, at)
	excess := s.total - r.limit + 1
	for i := int32(0); excess > 0; i++ {
		e := s.entry(i)
		if excess -= int64(e.n); excess <= 0 {
			return e.leaves(r.length, at) - at
		}
	}
	return 0
}

// gone returns how long it takes until the window is empty, if nothing more comes.
func (s *slide) gone(r slideRule, at int64) int64 {
	if s.pass(r, at); s.used == 0 {
		return 0
	}
	return s.entry(s.used-1).leaves(r.length, at) - at
}

// pass lets go of what has left the window.
func (s *slide) pass(r slideRule, at int64) {
	if at-s.last >= r.length+millisecond {
		// The entries may be older than their times can tell.
		s.head, s.used, s.total = 0, 0, 0
	}
	for s.used > 0 {
		e := s.entry(0)
		if e.leaves(r.length, at) > at {
			return
		}
		s.total -= int64(e.n)
		s.used--
		if s.head++; int(s.head) == len(s.ring) {
			s.head = 0
		}
	}
}

// add counts one message. A coarse one makes no more entries than there are coarse
// steps. held counts the entries that all rings have room for.
func (s *slide) add(r slideRule, at int64, coarse bool, held *int) {
	s.pass(r, at)
	this := arrivalAt(at)
	s.last = at
	s.total++
	if s.used > 0 {
		newest := s.entry(s.used - 1)
		step := uint32(0)
		switch {
		case coarse:
			step = uint32(r.length / coarseSteps / millisecond)
		case r.limit > slideExact:
			step = uint32(r.length / r.steps / millisecond)
		}
		if this.ms == newest.ms || this.ms-s.begun < step {
			newest.ms = this.ms
			newest.n++
			return
		}
	}
	s.spare(held)
	if int(s.used) == len(s.ring) {
		s.grow(held)
	}
	s.begun = this.ms
	s.used++
	*s.entry(s.used - 1) = this
}

func (s *slide) grow(held *int) {
	ring := make([]arrival, max(4, len(s.ring)+len(s.ring)/2))
	n := copy(ring, s.ring[s.head:])
	copy(ring[n:], s.ring[:s.head])
	*held += len(ring) - len(s.ring)
	s.ring, s.head = ring, 0
}

// spare gives back the memory of a ring that has become far too large.
func (s *slide) spare(held *int) {
	if len(s.ring) < 16 || int(s.used) > len(s.ring)/4 {
		return
	}
	ring := make([]arrival, 2*int(s.used))
	for i := range s.used {
		ring[i] = *s.entry(i)
	}
	*held += len(ring) - len(s.ring)
	s.ring, s.head = ring, 0
}

// reset forgets everything.
func (s *slide) reset(held *int) {
	*held -= len(s.ring)
	*s = slide{}
}

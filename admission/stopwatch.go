package admission

import "time"

// stopwatch turns the times that a limiter is given into nanoseconds since the
// first of them. It follows their monotonic reading, where they have one, and
// never goes back, in whatever order concurrent callers come.
type stopwatch struct {
	start time.Time
	at    int64
}

func (s *stopwatch) read(now time.Time) int64 {
	if s.start.IsZero() {
		s.start = now
	}
	s.at = min(max(s.at, int64(now.Sub(s.start))), endOfTime/2)
	return s.at
}

// wallAfter is the wall clock's time when wait nanoseconds will have passed.
func wallAfter(now time.Time, wait int64) time.Time {
	return now.Add(time.Duration(wait)).Round(0)
}

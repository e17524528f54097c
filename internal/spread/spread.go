// Package spread does the same to many things, one after the other and evenly
// spaced: a drain that closed thousands of connections in one instant would have
// all their clients come back in one, and spend the time of a second's work at once.
package spread

import (
	"math/rand/v2"
	"time"
)

// Step is how far apart two things are where there is time enough.
const Step = 5 * time.Millisecond

// Each calls f for each of the things, in a random order that it leaves them in:
// nobody's place in it can be foreseen or chosen. The calls are Step apart, or
// closer where all of them would not fit into within otherwise; with 0 there is no
// pause at all. Moments are counted from the first call, so that a pause that
// comes out too long makes the next one shorter. When over is closed, the rest is
// left. f must not wait.
func Each[T any](things []T, within time.Duration, over <-chan struct{}, f func(T)) {
	if len(things) == 0 {
		return
	}
	rand.Shuffle(len(things), func(i, j int) { things[i], things[j] = things[j], things[i] })
	step := min(Step, within/time.Duration(len(things)))
	timer := time.NewTimer(0)
	defer timer.Stop()
	<-timer.C
	began := time.Now()
	for i, thing := range things {
		if early := time.Until(began.Add(time.Duration(i) * step)); early > 0 {
			timer.Reset(early)
			select {
			case <-timer.C:
			case <-over:
				return
			}
		}
		f(thing)
	}
}

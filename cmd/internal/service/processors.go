package service

import (
	"context"
	"os"
	"runtime"
	"time"
)

// How many processors the program runs on. Goroutines that are spread over several
// wake threads for one another, which costs a connection up to a fifth of its time;
// what one processor can carry costs least on one. How many event loops there are
// goes by the same share, up to this number (proxy/loopshare.go).
const (
	processorPause = 100 * time.Millisecond // from one look to the next
	// crowded is the share of its processors, in thousandths, that a program uses
	// which needs one more; crowdedLooks is at how many looks in a row.
	crowded      = 950
	crowdedLooks = 4
	// roomy is the share, in thousandths, of one processor less that a program uses
	// which needs no more than that; roomyLooks is at how many looks in a row.
	roomy      = 800
	roomyLooks = 30
)

// processors decides how many there are to be, from one look to the next.
type processors struct {
	most, count  int
	busy, spared int           // looks in a row
	used         time.Duration // the program's processor time at the last look
	looked       time.Time
}

// look takes what processor time the program has used up, and returns how many
// processors it is to have.
func (p *processors) look(used time.Duration, now time.Time) int {
	share := 0
	if passed := now.Sub(p.looked); passed > 0 {
		share = int(1000 * (used - p.used) / passed)
	}
	p.used, p.looked = used, now
	if share >= crowded*p.count {
		p.busy++
	} else {
		p.busy = 0
	}
	if share < roomy*(p.count-1) {
		p.spared++
	} else {
		p.spared = 0
	}
	switch {
	case p.busy >= crowdedLooks && p.count < p.most:
		p.count = min(2*p.count, p.most) // a burst does not wait for each of many
		p.busy = 0
	case p.spared >= roomyLooks:
		p.count--
		p.spared = 0
	}
	return p.count
}

// ProcessorsAsNeeded has the program begin on one processor, and take as many more
// as it needs, up to those that it was given, until ctx ends. Where GOMAXPROCS says
// how many, they are that many.
func ProcessorsAsNeeded(ctx context.Context) {
	if _, set := os.LookupEnv("GOMAXPROCS"); set || !processorTimeWorks {
		return
	}
	given := runtime.GOMAXPROCS(0)
	if given == 1 {
		return
	}
	defer runtime.GOMAXPROCS(given)
	runtime.GOMAXPROCS(1)
	p := processors{most: given, count: 1, used: processorTime(), looked: time.Now()}
	looks := time.NewTicker(processorPause)
	defer looks.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-looks.C:
		}
		before := p.count
		if n := p.look(processorTime(), time.Now()); n != before {
			runtime.GOMAXPROCS(n)
		}
	}
}

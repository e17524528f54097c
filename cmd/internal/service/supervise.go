package service

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"time"

	"relayedge/internal/hostport"
	"relayedge/internal/sdnotify"
	"relayedge/internal/telemetry"
)

// lookEvery is how often the manager is told how the service is doing, at least.
const lookEvery = 10 * time.Second

// Told logs that the service manager could not be told, if err says so.
func Told(err error, log *slog.Logger) {
	if err != nil {
		log.Warn("the service manager cannot be told how the service is doing", "error", err)
	}
}

// Supervise tells the service manager how the service is doing, until ctx ends. A
// watchdog is fed only while the service is found alive: see Vitals. Without a manager
// it returns at once.
func Supervise(ctx context.Context, m *sdnotify.Manager, v *Vitals, log *slog.Logger) {
	if !m.Present() {
		return
	}
	told := func(err error) {
		if ctx.Err() == nil {
			Told(err, log)
		}
	}
	p := pulse{every: lookEvery, look: v.look, status: func(s string) { told(m.Status(s)) }, alive: func() {}, log: log}
	if w := m.Watchdog(); w > 0 {
		// Two pings may be late or lost before it bites.
		p.every = min(p.every, w/3)
		p.alive = func() { told(m.Alive()) }
	}
	p.run(ctx)
}

// Vitals are what a service is found alive by. It is, while
//   - its counters can be read, which takes the locks of its parts, and
//   - of those who wait at its sockets some are taken, or refused, from one look
//     to the next.
//
// A relay that is down, a store that is away or full caps are no reason to end the
// connections there are: of these the status tells, and the metrics.
type Vitals struct {
	Families []telemetry.Family    // connections, connections_total and rejections_total among them
	Sockets  func() []net.Listener // where clients come in
	Ready    func() error          // why it serves nobody, for the status

	// Owned by look.
	moved   float64 // accepted and refused, by the last look
	waiting map[net.Listener]bool
}

// look returns a line for the operator, or why the service is not alive.
func (v *Vitals) look() (status string, err error) {
	defer func() {
		if fault := recover(); fault != nil {
			err = fmt.Errorf("a fault of the program: %v", fault)
		}
	}()
	// Before the counters: who is taken in between counts as progress.
	waiting := make(map[net.Listener]bool)
	for _, socket := range v.Sockets() {
		waiting[socket] = queued(socket)
	}
	var open, accepted, refused, pauses float64
	for _, f := range v.Families {
		if f.ReadHistogram != nil {
			f.ReadHistogram()
			continue
		}
		f.Read(func(label string, n float64) {
			switch {
			case f.Name == "connections":
				open += n
			case f.Name == "connections_total":
				accepted += n
			case f.Name == "rejections_total" && label == "rate_limit":
				pauses += n // nobody was refused
			case f.Name == "rejections_total":
				refused += n
			}
		})
	}
	moved, before := accepted+refused+pauses, v.moved
	waited := v.waiting
	v.moved, v.waiting = moved, waiting
	var stuck []string
	for socket, waits := range waiting {
		if waits && waited[socket] && moved == before {
			stuck = append(stuck, hostport.Text(socket.Addr()))
		}
	}
	if len(stuck) > 0 {
		return "", errors.New("clients wait and nobody is taken at " + strings.Join(stuck, ", "))
	}
	status = fmt.Sprintf("serving: %.0f connections open, %.0f refused or ended by a limit", open, refused)
	if err := v.Ready(); err != nil {
		status += "; not ready: " + err.Error()
	}
	return status, nil
}

// pulse looks again and again, and says what it has found.
type pulse struct {
	every  time.Duration
	look   func() (status string, err error)
	status func(string)
	alive  func()
	log    *slog.Logger
}

func (p *pulse) run(ctx context.Context) {
	looks := time.NewTicker(p.every)
	defer looks.Stop()
	type found struct {
		status string
		err    error
	}
	last, ill := "", false
	fall := func(why string) {
		if !ill {
			p.log.Error("the service is not alive, and its watchdog is not fed until it is", "error", why)
			p.status("not alive: " + why)
		}
		last, ill = "", true
	}
	for {
		select {
		case <-looks.C:
		case <-ctx.Done():
			return
		}
		// One that hangs is what the watchdog is for; the end does not wait for it.
		result := make(chan found, 1)
		go func() {
			status, err := p.look()
			result <- found{status, err}
		}()
		var f found
		late := time.NewTimer(p.every)
	wait:
		for {
			select {
			case f = <-result:
				break wait
			case <-late.C:
				fall("its counters cannot be read")
			case <-ctx.Done():
				late.Stop()
				return
			}
		}
		late.Stop()
		if f.err != nil {
			fall(f.err.Error())
			continue
		}
		if ill {
			p.log.Warn("the service is alive again")
			ill = false
		}
		p.alive()
		if f.status != last {
			p.status(f.status)
			last = f.status
		}
	}
}

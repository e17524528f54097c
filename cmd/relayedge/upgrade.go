package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"slices"
	"sync"
	"syscall"
	"time"

	"relayedge/admission"
	"relayedge/admission/succession"
	"relayedge/cmd/internal/service"
	"relayedge/internal/control"
	"relayedge/internal/handover"
	"relayedge/internal/hostport"
	"relayedge/internal/sdnotify"
)

const (
	// mostOlder is how many older processes may serve what they have open while one
	// more takes over.
	mostOlder = 4
	// readyPatience is how long a new process may take to build all that it needs.
	readyPatience = time.Minute
	// pausePatience is how long those who accept may take to stop, while nobody else does.
	pausePatience = 2 * time.Second
)

// upgrades hands this process's place over to a new one.
type upgrades struct {
	// Static.
	ctx       context.Context // ends with the service
	gate      *admission.Gate
	fleet     *fleet
	secret    []byte // of the keys by which requests are counted
	edge      *edge
	reloader  *service.Reloader
	manager   *sdnotify.Manager
	successor *succession.Successor
	elder     *succession.Elder
	finish    func() // ends this process: it has nothing left to serve, or the service ends
	log       *slog.Logger

	turn chan struct{} // holds one element, for the upgrade under way
	done chan struct{} // closed when another process has taken over for the first time

	// Guarded by mu.
	mu     sync.Mutex
	to     int                // the process that has taken over; 0: none has
	stay   context.CancelFunc // has this one no longer wait for its end; nil: it does not
	resume func()             // ends the hold of reloads; nil: there is none
	back   chan struct{}      // closed when this process serves again
	first  sync.Once          // closes done
}

func newUpgrades(ctx context.Context, gate *admission.Gate, fleet *fleet, secret []byte, edge *edge, reloader *service.Reloader, manager *sdnotify.Manager, successor *succession.Successor, finish func(), log *slog.Logger) *upgrades {
	u := &upgrades{
		ctx: ctx, gate: gate, fleet: fleet, secret: secret, edge: edge, reloader: reloader, manager: manager, successor: successor,
		finish: finish, log: log, turn: make(chan struct{}, 1), done: make(chan struct{}),
	}
	u.elder = succession.NewElder(gate, successor, u.alone, u.ends)
	return u
}

// catchUpgrades has SIGUSR2 no longer end the process, and returns the signal. Call
// it first of all: a process that was just started is asked for the next upgrade too.
func catchUpgrades() <-chan os.Signal {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGUSR2)
	return signals
}

// run upgrades at each signal until the service ends.
func (u *upgrades) run(signals <-chan os.Signal) {
	for {
		select {
		case <-signals:
			u.Upgrade(u.ctx) // which logs what becomes of it
		case <-u.ctx.Done():
			return
		}
	}
}

// Upgrade has a new process take over, or leaves everything as it was. Either way
// it is logged.
func (u *upgrades) Upgrade(ctx context.Context) (service.Upgraded, error) {
	select {
	case u.turn <- struct{}{}:
	default:
		return service.Upgraded{}, errors.New("an upgrade is under way")
	}
	defer func() { <-u.turn }()
	done, err := u.upgrade(ctx)
	if err != nil {
		u.log.Error("no other process has taken over: this one serves on", "error", service.OneLine(err))
		return done, err
	}
	u.log.Info("another process has taken over", "pid", done.PID, "open", done.Open, "gap", done.Gap)
	return done, nil
}

func (u *upgrades) upgrade(ctx context.Context) (done service.Upgraded, err error) {
	if os.Getpid() == 1 {
		return done, errors.New("this is the first process of its container (PID 1), and all others there end with it, the one that takes over too; restart the container in place of an upgrade")
	}
	if u.elder.Retired() {
		u.mu.Lock()
		defer u.mu.Unlock()
		return done, fmt.Errorf("the process %d has taken over from this one; ask that", u.to)
	}
	if n := len(u.successor.Elders()); n >= mostOlder {
		return done, fmt.Errorf("%d older processes still serve what they have open; upgrade when one of them has ended, which takes limits.drain_secs at most", n)
	}
	release, err := u.reloader.Hold(ctx)
	if err != nil {
		return done, err
	}
	child, err := handover.Start(sdnotify.Environ(os.Environ()))
	if err != nil {
		release()
		return done, err
	}
	u.log.Info("a new process is started, to take over", "pid", child.PID)
	h := &handing{upgrades: u, child: child, serving: make(chan struct{})}
	stop := context.AfterFunc(u.ctx, child.Kill) // which ends every wait for it
	defer stop()
	if err := h.untilReady(); err != nil {
		child.Kill()
		child.Line.Close()
		release()
		return done, err
	}
	u.mu.Lock()
	u.to, u.resume, u.back = child.PID, release, make(chan struct{})
	back := u.back
	u.mu.Unlock()
	began, err := h.handOver()
	if err != nil {
		h.takeBack()
		<-back
		return done, err
	}
	done = service.Upgraded{PID: child.PID, Old: os.Getpid(), Open: h.outlive(), Gap: time.Since(began)}
	return done, nil
}

// handing is one upgrade under way.
type handing struct {
	*upgrades
	child   *handover.Child
	heir    *succession.Heir // nil until it is told
	once    sync.Once        // closes serving
	serving chan struct{}    // closed when the new process accepts
}

// untilReady gives the new process what it needs to start, and waits until it has.
func (h *handing) untilReady() error {
	if err := h.start(); err != nil {
		return h.ended(err)
	}
	h.child.Line.SetReceiveDeadline(time.Now().Add(readyPatience))
	m, err := h.child.Line.Receive()
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Errorf("the new process has not started within %v", readyPatience)
	case err != nil:
		return h.ended(err)
	case m.Kind == saysFailed:
		return fmt.Errorf("the new process cannot start: %s", m.Body)
	case m.Kind != saysReady:
		return errors.New("the new process says what cannot be understood; restart in place of the upgrade")
	}
	h.child.Line.SetReceiveDeadline(time.Time{})
	return nil
}

// ended says how the new process has ended, if it has.
func (h *handing) ended(err error) error {
	select {
	case <-h.child.Exited():
		return fmt.Errorf("the new process has ended before it served (%s); what it wrote stands in the log", h.child.State())
	case <-time.After(time.Second):
		return fmt.Errorf("the new process does not answer: %w", err)
	}
}

func (h *handing) start() error {
	text, err := json.Marshal(hello{Version: handoverVersion, Secret: h.gate.Secret(), Shared: h.fleet.gate != nil, Request: h.secret, PID: os.Getpid(), Older: len(h.successor.Elders())})
	if err != nil {
		return err
	}
	if err := h.child.Line.Send(handover.Message{Kind: saysHello, Body: text}); err != nil {
		return err
	}
	sockets, err := hostport.Sockets()
	if err != nil {
		return err
	}
	for _, s := range sockets {
		defer s.File.Close()
	}
	for _, s := range sockets {
		if err := h.child.Line.Send(handover.Message{Kind: saysSocket, Body: []byte(s.Key), Files: []*os.File{s.File}}); err != nil {
			return err
		}
	}
	return h.child.Line.Send(handover.Message{Kind: saysBegin})
}

// handOver hands over to a process that is ready, and returns since when nobody
// has accepted. After an error that may be this one still, or nobody.
func (h *handing) handOver() (began time.Time, err error) {
	h.heir = h.elder.Tell(h.child.Line, func(m handover.Message) {
		if m.Kind == saysServing {
			h.once.Do(func() { close(h.serving) })
		}
	})
	gone := errors.New("the new process has ended before it served; what it wrote stands in the log")
	late := time.NewTimer(takePatience)
	defer late.Stop()
	// All that is told by then needs nobody to wait.
	select {
	case <-h.heir.Told():
	case <-h.heir.Gone():
		return began, gone
	case <-late.C:
		return began, errors.New("the new process does not take what it is told")
	}
	ends, err := h.successor.Introduce()
	if err != nil {
		return began, err
	}
	err = h.child.Line.Send(handover.Message{Kind: saysOlder, Body: []byte{byte(len(ends))}})
	for _, end := range ends {
		err = errors.Join(err, h.child.Line.Send(handover.Message{Kind: saysElder, Files: []*os.File{end}}))
		end.Close()
	}
	if err != nil {
		return began, gone
	}
	known := h.fleet.hand()
	began = time.Now()
	if !hostport.Pause(pausePatience, h.edge.sockets()...) {
		return began, errors.New("a listener of this process does not stop accepting")
	}
	for part := range slices.Chunk(known, handover.MaxBody) {
		if h.child.Line.Send(handover.Message{Kind: saysFleet, Body: part}) != nil {
			return began, gone
		}
	}
	if err := h.heir.Hand(h.edge.guard.requests()); err != nil {
		return began, gone
	}
	if !h.elder.Retire() {
		return began, gone
	}
	late.Reset(takePatience)
	select {
	case <-h.serving:
		return began, nil
	case <-h.heir.Gone():
		return began, gone
	case <-late.C:
		return began, fmt.Errorf("the new process has not served within %v", takePatience)
	}
}

// takeBack has this process serve on after a failure: the new one ends first, for
// two that decide would let in too many.
func (h *handing) takeBack() {
	h.child.Kill()
	<-h.heir.Gone()
	if !h.elder.Retired() {
		h.alone()
	}
}

// outlive serves what this process has open, and ends it when nothing is left. It
// returns how much that is.
func (h *handing) outlive() (open int) {
	ctx, cancel := context.WithCancel(context.Background())
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.to != h.child.PID {
		cancel() // it has ended already, and this process serves again
		return 0
	}
	hostport.KeepFiles(true)
	h.manager.Retire() // the new one has told that it is the main one
	h.stay = cancel
	h.first.Do(func() { close(h.done) })
	go func() {
		if !h.edge.server.Outlive(ctx) {
			return
		}
		h.mu.Lock()
		defer h.mu.Unlock()
		if h.to == h.child.PID {
			h.finish()
		}
	}()
	return h.edge.server.Open()
}

// alone has this process accept again: all that have taken over from it have ended.
func (u *upgrades) alone() {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.to == 0 {
		return
	}
	if u.stay != nil {
		u.log.Warn("the process that had taken over has ended: this one serves again", "pid", u.to)
		u.stay()
		if u.edge.relay.server != nil {
			go u.renew()
		}
	}
	if u.resume != nil {
		u.resume()
	}
	u.to, u.stay, u.resume = 0, nil, nil
	u.edge.guard.requests().TakeBack()
	u.fleet.takeBack()
	hostport.KeepFiles(false)
	hostport.Resume()
	// Whether or not the other one had told that it is the main process.
	service.Told(u.manager.TakeOver("serving again, in place of the process that had taken over"), u.log)
	close(u.back)
}

// renew has a new process take over, because the relay of this one has ended. It
// tries until one does.
func (u *upgrades) renew() {
	for pause := time.Second; ; pause = min(2*pause, time.Minute) {
		u.log.Warn("the relay of this process had ended with the upgrade; a new process is started")
		if _, err := u.Upgrade(u.ctx); err == nil || u.elder.Retired() {
			return
		}
		select {
		case <-time.After(pause):
		case <-u.ctx.Done():
			return
		}
	}
}

// ends follows the end of the service: the process that has taken over ends on purpose.
func (u *upgrades) ends() {
	u.log.Info("the process that has taken over ends on purpose, and this one with it")
	u.finish()
}

// farewell tells the older processes that the service ends, so that none of them takes
// the place of this one again. Another end than by a signal is not told.
func (u *upgrades) farewell() {
	if !u.elder.Retired() {
		u.successor.Farewell()
	}
}

// outlast waits for the older processes, which drain as this one has: a service
// manager ends with the main process whatever is left.
func (u *upgrades) outlast() {
	if u.elder.Retired() {
		return
	}
	for _, older := range u.successor.Elders() {
		<-older.Gone()
	}
}

// close ends what an upgrade holds.
func (u *upgrades) close() {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.stay != nil {
		u.stay()
	}
	if u.resume != nil {
		u.resume()
	}
	u.stay, u.resume = nil, nil
}

// answer has the control socket answer to the command.
func (u *upgrades) answer(r *service.Reloader) {
	if r.Answers == nil {
		r.Answers = make(control.Answers)
	}
	r.Answers["POST "+service.UpgradePath] = func(ctx context.Context) (any, error) { return u.Upgrade(ctx) }
}

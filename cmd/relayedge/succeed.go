package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"

	"relayedge/admission"
	"relayedge/admission/succession"
	"relayedge/cmd/internal/service"
	"relayedge/internal/handover"
	"relayedge/internal/hostport"
	"relayedge/internal/sdnotify"
)

// What a process and the one that takes its place say to each other, in this order,
// beside what package succession says.
const (
	saysHello   = succession.Others + iota // elder: what is needed to start (hello)
	saysSocket                             // elder: a listening socket and its key
	saysBegin                              // elder: that was all
	saysReady                              // successor: all is built, nothing is accepted yet
	saysFailed                             // successor: it cannot start, and why
	saysOlder                              // elder: how many even older processes follow
	saysElder                              // elder: the line to one of them
	saysFleet                              // elder: a part of what it knows of its fleet
	saysServing                            // successor: it accepts
)

// handoverVersion is of all that two processes say to each other.
const handoverVersion = 1

const (
	// helloPatience is how long a successor waits for what it needs to start.
	helloPatience = 30 * time.Second
	// takePatience is how long one of the two waits for the other, once nobody accepts.
	takePatience = 15 * time.Second
	// mostSockets bounds what is handed over.
	mostSockets = 1024
	// mostFleetBytes bounds what an edge may know of its fleet.
	mostFleetBytes = 8 << 20
)

// hello is what a successor needs to start.
type hello struct {
	Version int
	Secret  [16]byte // of the gate's hashes
	Shared  bool     // the gate is one of a fleet
	Request []byte   // the secret of the keys by which requests are counted
	PID     int
	Older   int // processes that are even older
}

// heritage is what this process has of the one whose place it takes; nil: it takes
// nobody's.
type heritage struct {
	line   *handover.Line
	hello  hello
	fleet  []byte // what it knew of its fleet
	orphan bool   // that process has ended before it had handed over
	log    *slog.Logger
}

// inherit takes the sockets and what else is needed to start from the process that
// started this one to take its place, if there is one.
func inherit() (*heritage, error) {
	line, err := handover.Parent()
	if line == nil || err != nil {
		return nil, err
	}
	h := &heritage{line: line}
	if err := h.read(); err != nil {
		h.fail(err)
		return nil, err
	}
	return h, nil
}

func (h *heritage) read() error {
	h.line.SetReceiveDeadline(time.Now().Add(helloPatience))
	defer h.line.SetReceiveDeadline(time.Time{})
	var handed []hostport.Handed
	for {
		m, err := h.line.Receive()
		switch {
		case errors.Is(err, handover.ErrEnded) && h.hello.Older == 0:
			// It was killed, and nobody else serves. What it has not handed over is free.
			h.orphan = true
			hostport.Inherit(handed)
			return nil
		case err != nil:
			return fmt.Errorf("the process to take over from says nothing: %w", err)
		case m.Kind == saysHello:
			if err := json.Unmarshal(m.Body, &h.hello); err != nil || h.hello.Version != handoverVersion {
				return fmt.Errorf("the process to take over from hands over as version %d, and this one takes version %d; restart in place of the upgrade", h.hello.Version, handoverVersion)
			}
		case m.Kind == saysSocket && len(m.Files) == 1 && len(handed) < mostSockets:
			handed = append(handed, hostport.Handed{Key: string(m.Body), File: m.Files[0]})
		case m.Kind == saysBegin && h.hello.Version != 0:
			hostport.Inherit(handed)
			return nil
		default:
			return errors.New("the process to take over from sends what cannot be understood; restart in place of the upgrade")
		}
	}
}

// fail tells the older process why this one cannot take its place.
func (h *heritage) fail(err error) {
	if h == nil || err == nil {
		return
	}
	text := err.Error()
	h.line.Send(handover.Message{Kind: saysFailed, Body: []byte(text[:min(len(text), handover.MaxBody)])})
}

// gate returns the gate of this process: of a fleet, one that was handed over, or nil
// for a new one.
func (h *heritage) gate(fleet *admission.Gate) (*admission.Gate, error) {
	switch {
	case h == nil || h.hello.Version == 0:
		if fleet != nil {
			return fleet, nil
		}
		return admission.NewGate(admission.DefaultLimits())
	case fleet == nil && !h.hello.Shared:
		return admission.NewSuccessor(admission.DefaultLimits(), h.hello.Secret)
	case fleet == nil || !h.hello.Shared || fleet.Secret() != h.hello.Secret:
		return nil, errors.New("the redis section, or the secret that it names, is not that of the process to take over from: their counts cannot be put together; restart in place of the upgrade")
	}
	return fleet, nil
}

// requestSecret is the secret of the keys by which requests are counted: that of the
// older process, or a new one.
func (h *heritage) requestSecret() []byte {
	if h != nil && len(h.hello.Request) > 0 {
		return h.hello.Request
	}
	secret := make([]byte, 32)
	rand.Read(secret) // never fails: it ends the process instead
	return secret
}

// take takes the place of the older process once serving is closed, and returns when
// this one accepts. join goes on as the edge of a fleet that the older one was.
func (h *heritage) take(successor *succession.Successor, manager *sdnotify.Manager, serving <-chan struct{}, join func([]byte) error) error {
	<-serving
	missing := h.hello.Older // of the even older processes, how many are not followed yet
	other := func(m handover.Message) {
		switch {
		case m.Kind == saysOlder && len(m.Body) == 1:
			missing = int(m.Body[0])
		case m.Kind == saysFleet && len(h.fleet) < mostFleetBytes:
			h.fleet = append(h.fleet, m.Body...)
		case m.Kind == saysElder && len(m.Files) == 1:
			if line, err := handover.LineOf(m.Files[0]); err == nil {
				successor.Follow(line, func(handover.Message) {})
				missing--
			}
		}
	}
	if !h.orphan {
		if h.line.Send(handover.Message{Kind: saysReady}) != nil {
			h.line.Ended()
		}
		elder := successor.Follow(h.line, other)
		if err := successor.Await(elder, readyPatience); err != nil {
			return err
		}
		if h.orphan = !elder.Final(); h.orphan {
			<-elder.Gone()
			if missing > 0 {
				return errors.New("the process to take over from has ended, and an older one has taken its place")
			}
		}
	}
	if h.orphan {
		h.fleet = nil // what it knew in part is of no use
	}
	if err := join(h.fleet); err != nil {
		return err
	}
	successor.Open()
	rest := hostport.Rest()
	hostport.Resume()
	// Before the older one hears that it may end.
	service.Told(manager.TakeOver("serving, in place of the process before"), h.log)
	if !h.orphan {
		h.line.Send(handover.Message{Kind: saysServing}) // who does not hear it has ended
	}
	h.refuse(rest, successor)
	return nil
}

// refuse closes whoever connects to the sockets that are in no policy any longer, as
// long as an older process keeps them open.
func (h *heritage) refuse(rest []net.Listener, successor *succession.Successor) {
	if len(rest) == 0 {
		return
	}
	var accepting sync.WaitGroup
	for _, ln := range rest {
		h.log.Info("a listener of the process before is in the policy no longer: whoever connects there is closed", "on", hostport.Text(ln.Addr()))
		accepting.Go(func() {
			for {
				conn, err := ln.Accept()
				if err != nil {
					return
				}
				conn.Close()
			}
		})
	}
	go func() {
		for _, older := range successor.Elders() {
			<-older.Gone()
		}
		for _, ln := range rest {
			if unix, ok := ln.(*net.UnixListener); ok {
				unix.SetUnlinkOnClose(true)
			}
			ln.Close()
		}
		accepting.Wait()
	}()
}

// takeOver has the process take the place of the older one, if there is one, and
// ends it by fail where it cannot. It reports whether the process serves in
// its place, which the service manager knows by then.
func (h *heritage) takeOver(ctx context.Context, successor *succession.Successor, manager *sdnotify.Manager, serving <-chan struct{}, join func([]byte) error, fail context.CancelCauseFunc) bool {
	if h == nil {
		successor.Open()
		return true
	}
	done := make(chan error, 1)
	go func() { done <- h.take(successor, manager, serving, join) }()
	select {
	case err := <-done:
		if err != nil {
			fail(err)
			return false
		}
		if h.orphan {
			h.log.Warn("the process to take over from has ended before it had handed over; serving in its place", "pid", h.hello.PID, "own", os.Getpid())
			return true
		}
		h.log.Info("took over from another process, which serves what it has open", "pid", h.hello.PID, "own", os.Getpid())
		return true
	case <-ctx.Done():
		return false
	}
}

// in gives it the log.
func (h *heritage) in(log *slog.Logger) *heritage {
	if h != nil {
		h.log = log
	}
	return h
}

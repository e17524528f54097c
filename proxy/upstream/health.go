package upstream

import (
	"context"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	"relayedge/internal/proxyheader"
)

const (
	// firstCheckWithin spreads the first checks after a start.
	firstCheckWithin = time.Second
	// goodbyeTime and goodbyeBytes bound what a check waits for and takes once it is
	// connected: while it says what it is, and while the relay closes its side too.
	goodbyeTime  = time.Second
	goodbyeBytes = 64 << 10
)

// Run checks the addresses until ctx ends or the upstream is retired, as the
// config in force says: each by itself, one check after the other. It returns
// when the last check has ended, a second later at most.
func (u *Upstream) Run(ctx context.Context) {
	for ctx.Err() == nil {
		round, end := context.WithCancel(ctx)
		u.mu.Lock()
		addresses, interval := u.addresses, time.Duration(u.Config().HealthCheckSecs)*time.Second
		u.endRound = end
		u.mu.Unlock()
		if len(addresses) == 0 { // it is retired
			end()
			break
		}
		var checks sync.WaitGroup
		if interval > 0 {
			for _, a := range addresses {
				checks.Go(func() { u.watch(round, a, interval) })
			}
		}
		<-round.Done()
		checks.Wait()
		end()
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.endRound = nil
}

// watch checks one address until ctx ends. The time between two checks differs
// by a tenth either way, so that edges that started together do not stay together.
func (u *Upstream) watch(ctx context.Context, a *address, interval time.Duration) {
	wait := rand.N(min(firstCheckWithin, interval))
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
		u.check(ctx, a)
		wait = interval*9/10 + rand.N(interval/5)
	}
}

// check looks once whether an address takes connections, in connect_timeout_secs
// and a second more for the goodbye. The end of ctx cuts the dial short, and the
// goodbye never: a connection that is closed over unread bytes ends in a reset,
// which some relays take for a fault of their own.
func (u *Upstream) check(ctx context.Context, a *address) {
	cfg := u.Config()
	dial, cancel := context.WithTimeout(ctx, time.Duration(cfg.ConnectTimeoutSecs)*time.Second)
	defer cancel()
	conn, err := u.connect(dial, a, nil)
	if err == nil {
		defer conn.Close()
		err = greet(conn, cfg.ClientAddress)
	}
	switch {
	case err != nil && ctx.Err() != nil: // the check was cut short
		return
	case err != nil && local(classify(err)):
		u.log.Debug("a health check could not be made, which says nothing about the relay", "upstream", u.Name, "address", a.text, "error", err)
		return
	}
	u.noteCheck(a, err)
	if err == nil {
		goodbye(conn)
	}
}

// greet says that this is a check and nobody's connection.
func greet(conn net.Conn, clientAddress string) error {
	conn.SetDeadline(time.Now().Add(goodbyeTime))
	var header []byte
	switch clientAddress {
	case "proxy-v2":
		header, _ = proxyheader.AppendV2(nil, proxyheader.Header{Local: true}, false) // too short to fail
	case "proxy-v1":
		header = proxyheader.AppendV1(nil, proxyheader.Header{Local: true})
	default:
		return nil
	}
	_, err := conn.Write(header)
	return err
}

// goodbye ends the connection of a check without a reset: it takes what a relay
// that speaks first has to say, until the relay closes its side.
func goodbye(conn net.Conn) {
	if half, ok := conn.(interface{ CloseWrite() error }); !ok || half.CloseWrite() != nil {
		return
	}
	io.Copy(io.Discard, io.LimitReader(conn, goodbyeBytes))
}

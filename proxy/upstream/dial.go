package upstream

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"syscall"
	"time"

	"relayedge/internal/sockopt"
)

// leastAttempt is what one address gets at least of connect_timeout_secs, as
// long as that much is left.
const leastAttempt = time.Second

// busyPause is how long a dial waits when a unix socket's queue is full, which
// the kernel says at once where TCP would wait.
const busyPause = 10 * time.Millisecond

// downDials is how many dials at once try an address that failed when it was last tried. One
// that does not answer holds its clients for connect_timeout_secs: without a
// bound those would come to fill the edge, and shut out the clients of upstreams
// that are well.
const downDials = 16

// errTried: the addresses that are left are down, and being tried enough already.
var errTried = errors.New("every address is down, and as many clients as may are finding out whether it still is")

// Link is a connection to a relay. Its address counts it until Release.
type Link struct {
	Conn    net.Conn // the caller's to close
	Address string   // as the config has it

	upstream *Upstream
	address  *address
	onLost   func() // guarded by the upstream's mutex
	isLost   bool   // likewise
}

// Release gives the connection's count back, once however often it is called.
// Whoever dialled calls it when the connection is closed.
func (l *Link) Release() {
	l.upstream.mu.Lock()
	defer l.upstream.mu.Unlock()
	delete(l.address.links, l)
	l.onLost = nil
}

// OnLost has f called once, in a goroutine of its own, when the connection is to
// end because its address is lost: at once, if it is already. After Release it is
// not called.
func (l *Link) OnLost(f func()) {
	l.upstream.mu.Lock()
	defer l.upstream.mu.Unlock()
	if _, held := l.address.links[l]; !held {
		return
	}
	l.onLost = f
	if l.isLost || l.upstream.lost(l.address) {
		l.lose()
	}
}

// lose requires the upstream's mutex.
func (l *Link) lose() {
	l.isLost = true
	if l.onLost != nil {
		go l.onLost()
		l.onLost = nil
	}
}

// Connector makes the sockets of a dial in the place of the net package.
type Connector interface {
	// Connect is a DialFunc that is given the options of the socket.
	Connect(ctx context.Context, sockets sockopt.Options, network, address string) (net.Conn, error)
	// Adopt takes over a connection that the net package had to make.
	Adopt(net.Conn) (net.Conn, error)
}

// Dial connects to one of the addresses. Its error is one of the package's, with
// the causes: what it was at any of the addresses, and of several ErrDescriptors
// before ErrLocalPorts before ErrTimeout.
func (u *Upstream) Dial(caller context.Context) (*Link, error) { return u.DialBy(caller, nil) }

// DialBy is Dial with a caller's own sockets; nil: the net package's.
func (u *Upstream) DialBy(caller context.Context, connect Connector) (*Link, error) {
	ctx, cancel := context.WithTimeout(caller, time.Duration(u.Config().ConnectTimeoutSecs)*time.Second)
	defer cancel()
	var tried []*address
	var kinds, causes []error
	for {
		a, left := u.choose(tried)
		if a == nil {
			if len(tried) == 0 {
				causes = append(causes, errTried)
			}
			break
		}
		tried = append(tried, a)
		link, err := u.try(ctx, a, left, connect)
		if err == nil {
			return link, nil
		}
		kind := classify(err)
		kinds, causes = append(kinds, kind), append(causes, err)
		if caller.Err() != nil { // the session is going away, which is not the relay's fault
			break
		}
		if local(kind) {
			u.noteLocal(a, err)
		} else {
			u.note(a, err)
		}
		if kind == ErrDescriptors || ctx.Err() != nil {
			break
		}
	}
	for _, kind := range []error{ErrDescriptors, ErrLocalPorts, ErrTimeout} {
		if slices.Contains(kinds, kind) {
			return nil, fmt.Errorf("%w: %w", kind, errors.Join(causes...))
		}
	}
	return nil, fmt.Errorf("%w: %w", ErrUnavailable, errors.Join(causes...))
}

// choose takes the next address for a dial that tried some already, counts the
// dial on it, and says how many are left, this one included. It is nil if none is.
func (u *Upstream) choose(tried []*address) (chosen *address, left int) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if len(tried) == 0 {
		u.turn++
	}
	n := len(u.addresses)
	for i := range n {
		a := u.addresses[(u.turn+i)%n]
		if slices.Contains(tried, a) || a.dialling >= downDials && a.failure != nil {
			continue
		}
		left++
		if chosen == nil || u.better(a, chosen) {
			chosen = a
		}
	}
	if chosen != nil {
		chosen.dialling++
	}
	return chosen, left
}

// better requires mu.
func (u *Upstream) better(a, b *address) bool {
	if up := u.up(a); up != u.up(b) {
		return up
	}
	return a.held() < b.held()
}

// try dials a chosen address within its part of the time, and turns the dial's
// count into the connection's.
func (u *Upstream) try(ctx context.Context, a *address, left int, connect Connector) (*Link, error) {
	conn, err := u.attempt(ctx, a, left, connect)
	u.mu.Lock()
	defer u.mu.Unlock()
	a.dialling--
	if err != nil {
		return nil, err
	}
	u.noteLocked(a, nil)
	link := &Link{Conn: conn, Address: a.text, upstream: u, address: a}
	a.links[link] = struct{}{}
	return link, nil
}

func (u *Upstream) attempt(ctx context.Context, a *address, left int, connect Connector) (net.Conn, error) {
	if end, ok := ctx.Deadline(); ok && left > 1 {
		rest := time.Until(end)
		if part := max(rest/time.Duration(left), leastAttempt); part < rest {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, part)
			defer cancel()
		}
	}
	return u.connect(ctx, a, connect)
}

// connect dials one address. Names are resolved within ctx.
func (u *Upstream) connect(ctx context.Context, a *address, connect Connector) (net.Conn, error) {
	s := u.settings.Load()
	for {
		conn, err := u.connectOnce(ctx, s, a, connect)
		if err == nil || a.target.Network != "unix" || !errors.Is(err, syscall.EAGAIN) {
			return conn, err
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(busyPause):
		}
	}
}

func (u *Upstream) connectOnce(ctx context.Context, s *settings, a *address, connect Connector) (net.Conn, error) {
	switch {
	case u.standIn != nil:
		return u.standIn(ctx, a.target.Network, a.target.Address)
	case s.sources != nil && a.target.Network == "tcp":
		conn, err := s.sources.dial(ctx, s.sockets, a.target.Network, a.target.Address)
		if err == nil && connect != nil {
			return connect.Adopt(conn)
		}
		return conn, err
	case connect != nil:
		return connect.Connect(ctx, s.sockets, a.target.Network, a.target.Address)
	}
	return s.sockets.Dialer().DialContext(ctx, a.target.Network, a.target.Address)
}

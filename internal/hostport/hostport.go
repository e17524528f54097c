// Package hostport reads the addresses of the policy file, host:port and
// unix:/path: those that a socket is bound to and those that are connected to. It is the one place
// that says which spellings are taken and what "all addresses" means; it
// resolves nothing.
package hostport

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"syscall"

	"relayedge/internal/sockopt"
)

// Bind is an address to listen on.
type Bind struct {
	text string
	// Host is an unmapped IP address; [::] stands for all addresses, also where
	// no host is written. Of localhost it is 127.0.0.1.
	Host netip.Addr
	Port uint16 // 0: any free one
}

// ParseBind reads host:port, whose host is an IP address, localhost, or nothing
// for all addresses.
func ParseBind(s string) (Bind, error) {
	host, number, err := net.SplitHostPort(s)
	if err != nil {
		return Bind{}, fmt.Errorf("%q is no address to listen on; write host:port, as in 127.0.0.1:8443 or [::]:443", s)
	}
	port, ok := parsePort(number)
	if !ok {
		return Bind{}, fmt.Errorf("%q is no port; allowed is 0 to 65535, 0 for a free one", number)
	}
	b := Bind{text: s, Port: port}
	switch host {
	case "":
		b.Host = netip.IPv6Unspecified()
	case "localhost":
		b.Host = netip.AddrFrom4([4]byte{127, 0, 0, 1})
	default:
		if b.Host, err = netip.ParseAddr(host); err != nil {
			return Bind{}, fmt.Errorf("%q is no IP address; write one, or localhost, or [::] for all addresses", host)
		}
		b.Host = b.Host.Unmap()
	}
	return b, nil
}

// Loopback reports whether only this machine reaches it.
func (b Bind) Loopback() bool { return b.Host.IsLoopback() }

// Overlaps reports whether two sockets cannot both listen: the same address, or
// the same port where one takes all addresses. Port 0 is a free one each time.
func (b Bind) Overlaps(c Bind) bool {
	covers := func(x, y netip.Addr) bool {
		return x == y || x == netip.IPv6Unspecified() || x == netip.IPv4Unspecified() && y.Is4()
	}
	return b.Port == c.Port && b.Port != 0 && (covers(b.Host, c.Host) || covers(c.Host, b.Host))
}

// Listen listens on it: an IPv4 address, 0.0.0.0 too, takes IPv4 alone, [::]
// takes both. Its error is a *ListenError.
func (b Bind) Listen() (net.Listener, error) {
	network := "tcp"
	if b.Host.Is4() {
		network = "tcp4" // "tcp" would make 0.0.0.0 take IPv6 as well
	}
	ln, err := sockopt.Options{}.ListenConfig().Listen(context.Background(), network, b.text)
	if err == nil {
		return ln, nil
	}
	cause := err
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		cause = errno // the rest is what ListenError says
	}
	return nil, &ListenError{b.text, cause}
}

// ListenError says why a socket could not listen, and what to do.
type ListenError struct {
	Bind  string
	Cause error
}

func (e *ListenError) Error() string {
	text := fmt.Sprintf("cannot listen on %s: %v", e.Bind, e.Cause)
	switch e.Cause {
	case syscall.EADDRINUSE:
		return text + "; another process listens there; stop it, or choose another address"
	case syscall.EACCES:
		return text + "; ports below 1024 need root or the capability CAP_NET_BIND_SERVICE"
	case syscall.EADDRNOTAVAIL:
		return text + "; this machine has no such address"
	}
	return text
}

func (e *ListenError) Unwrap() error { return e.Cause }

// parsePort takes plain decimals alone: a name or a leading zero is a mistake.
func parsePort(s string) (port uint16, ok bool) {
	n, err := strconv.ParseUint(s, 10, 16)
	return uint16(n), err == nil && strconv.FormatUint(n, 10) == s
}

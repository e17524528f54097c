// Package hostport reads the addresses of the policy file: those that a socket
// is bound to (host:port, unix:/path, fd:NAME) and those that are connected to. It
// is the one place that says which spellings are taken and what "all addresses"
// means; it resolves nothing.
package hostport

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"relayedge/internal/sockopt"
)

// Bind is what to listen on: a TCP address, a unix socket, or a socket that the
// process was started with.
type Bind struct {
	text string
	// Host is an unmapped IP address; [::] stands for all addresses, also where
	// no host is written. Of localhost it is 127.0.0.1. It is the zero Addr for
	// what is no TCP address.
	Host netip.Addr
	Port uint16 // 0: any free one
	Path string // of a unix socket
	Name string // of a socket that is handed over
}

// ParseBind reads host:port, whose host is an IP address, localhost, or nothing
// for all addresses; unix:/path; or fd:NAME.
func ParseBind(s string) (Bind, error) {
	if path, ok := strings.CutPrefix(s, unixPrefix); ok {
		return parseLocal(path)
	}
	if name, ok := strings.CutPrefix(s, handedPrefix); ok {
		return parseHanded(name)
	}
	host, number, err := net.SplitHostPort(s)
	if err != nil {
		return Bind{}, fmt.Errorf("%q is no address to listen on; write host:port, as in 127.0.0.1:8443 or [::]:443, or unix:/path, or fd:NAME", s)
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

// TCP reports whether it is a TCP address, written as host:port.
func (b Bind) TCP() bool { return b.Host.IsValid() }

// Loopback reports whether only this machine reaches it: by its loopback
// addresses, or a unix socket. Of a socket that is handed over nothing is known.
func (b Bind) Loopback() bool { return b.Host.IsLoopback() || b.Path != "" }

// Overlaps reports whether two sockets cannot both listen: the same address, or
// the same port where one takes all addresses; the same path; the same name. Port
// 0 is a free one each time.
func (b Bind) Overlaps(c Bind) bool {
	if !b.TCP() || !c.TCP() {
		return b.Path != "" && filepath.Clean(b.Path) == filepath.Clean(c.Path) || b.Name != "" && b.Name == c.Name
	}
	covers := func(x, y netip.Addr) bool {
		return x == y || x == netip.IPv6Unspecified() || x == netip.IPv4Unspecified() && y.Is4()
	}
	return b.Port == c.Port && b.Port != 0 && (covers(b.Host, c.Host) || covers(c.Host, b.Host))
}

// Listen listens on it: an IPv4 address, 0.0.0.0 too, takes IPv4 alone, [::]
// takes both. Its error is a *ListenError.
func (b Bind) Listen() (net.Listener, error) {
	if b.Path != "" {
		return ListenUnix(b.Path, socketMode)
	}
	if ln := sockets.take(b.key()); ln != nil {
		return sockets.add(b.key(), ln), nil
	}
	if b.Name != "" {
		ln, err := inherited().listen(b.Name)
		if err != nil {
			return nil, &ListenError{b.text, err}
		}
		return sockets.add(b.key(), ln), nil
	}
	network := "tcp"
	if b.Host.Is4() {
		network = "tcp4" // "tcp" would make 0.0.0.0 take IPv6 as well
	}
	ln, err := sockopt.Options{}.ListenConfig().Listen(context.Background(), network, b.text)
	if err == nil {
		return sockets.add(b.key(), ln), nil
	}
	return nil, listenError(b.text, err)
}

func listenError(bind string, err error) *ListenError {
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		return &ListenError{bind, errno} // the rest is what ListenError says
	}
	return &ListenError{bind, err}
}

// Text is the address of a socket as the policy writes it.
func Text(a net.Addr) string {
	if a.Network() == "unix" {
		return unixPrefix + a.String()
	}
	return a.String()
}

// ListenError says why a socket could not listen, and what to do.
type ListenError struct {
	Bind  string
	Cause error
}

func (e *ListenError) Error() string {
	text := fmt.Sprintf("cannot listen on %s: %v", e.Bind, e.Cause)
	if strings.HasPrefix(e.Bind, unixPrefix) && e.Cause != syscall.EADDRINUSE {
		switch e.Cause {
		case syscall.EACCES, syscall.EPERM, syscall.ENOENT, syscall.ENOTDIR, syscall.EROFS:
			return text + "; its folder must exist, and this process must be allowed to write there"
		}
		return text
	}
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

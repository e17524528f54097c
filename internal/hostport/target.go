package hostport

import (
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"syscall"
)

// unixPrefix marks the path of a unix socket.
const unixPrefix = "unix:"

// maxUnixPath is what a socket address holds beside its final NUL byte.
const maxUnixPath = len(syscall.RawSockaddrUnix{}.Path) - 1

// Target is an address to connect to, as net.Dial takes it.
type Target struct {
	Network string // tcp or unix
	Address string // host:port, or a path
}

// ParseTarget reads host:port, whose host is a name or an IP address, or
// unix:/path. A relative path is relative to whatever the caller's paths are.
func ParseTarget(s string) (Target, error) {
	if path, ok := strings.CutPrefix(s, unixPrefix); ok {
		return Target{"unix", path}, checkUnixPath(path)
	}
	host, number, err := net.SplitHostPort(s)
	if err != nil || host == "" {
		return Target{}, fmt.Errorf("%q is no address; write host:port, as in 127.0.0.1:7777 or [::1]:7777, or unix:/path", s)
	}
	if port, ok := parsePort(number); !ok || port == 0 {
		return Target{}, fmt.Errorf("%q is no port; allowed is 1 to 65535", number)
	}
	return Target{"tcp", s}, nil
}

// CheckTarget says what is wrong with an address to connect to.
func CheckTarget(s string) error {
	_, err := ParseTarget(s)
	return err
}

// AbsTarget is the target with a relative path made absolute from the working folder.
func AbsTarget(s string) (string, error) {
	path, ok := strings.CutPrefix(s, unixPrefix)
	if !ok || path == "" {
		return s, nil
	}
	path, err := filepath.Abs(path)
	return unixPrefix + path, err
}

// checkUnixPath says what is wrong with the path of a unix socket, be it bound or
// connected to.
func checkUnixPath(path string) error {
	switch {
	case path == "":
		return errors.New("unix: has no path; write one, as in unix:/run/relay.sock")
	case strings.HasPrefix(filepath.Base(path), "@"):
		// Package net takes a leading @ for a name of the abstract namespace.
		return fmt.Errorf("%q: sockets of the abstract namespace (@) have no permissions, so anybody on this machine could take the name; write the path of a socket file", path)
	case strings.ContainsRune(path, 0):
		return fmt.Errorf("%q: the path of a socket has no NUL byte", path)
	case len(path) > maxUnixPath:
		return fmt.Errorf("the path of the unix socket has %d bytes with its folder; allowed are %d", len(path), maxUnixPath)
	}
	return nil
}

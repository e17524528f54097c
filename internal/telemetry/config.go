package telemetry

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"syscall"
)

// Config is the metrics section of the policy.
type Config struct {
	Enabled     bool   `key:"enabled" default:"true" doc:"serve metrics"`
	BindAddr    string `key:"bind_addr" default:"127.0.0.1:9090" doc:"address of the metrics endpoint"`
	AllowPublic bool   `key:"allow_public" default:"false" doc:"allow a bind_addr that is not loopback; the endpoint has no authentication, so firewall it"`
	Namespace   string `key:"namespace" default:"relayedge" doc:"prefix of every metric name"`
}

// fault is an error about one key of the section.
type fault struct{ key, text string }

func (f *fault) Error() string { return f.text }

// PolicyKey names the key, so that the policy file reports its position.
func (f *fault) PolicyKey() string { return f.key }

// Validate returns every fault of the section, joined. A bind_addr that is not
// loopback is one only if the endpoint is enabled.
func (c Config) Validate() error {
	var errs []error
	if loopback, err := checkBindAddr(c.BindAddr); err != nil {
		errs = append(errs, &fault{"bind_addr", err.Error()})
	} else if c.Enabled && !loopback && !c.AllowPublic {
		errs = append(errs, &fault{"bind_addr", fmt.Sprintf("%q is not loopback and the endpoint has no authentication; "+
			"use 127.0.0.1 or [::1], or set allow_public: true and firewall it", c.BindAddr)})
	}
	if !validName(c.Namespace) {
		errs = append(errs, &fault{"namespace", fmt.Sprintf("%q cannot begin a metric name; "+
			"use letters, digits and _, and begin with a letter or _", c.Namespace)})
	}
	return errors.Join(errs...)
}

// checkBindAddr reports whether s is a loopback address, or what is wrong with it.
func checkBindAddr(s string) (loopback bool, err error) {
	host, port, err := net.SplitHostPort(s)
	if err != nil {
		return false, fmt.Errorf("%q is not host:port; an IPv6 address stands in brackets: [::1]:9090", s)
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || strconv.FormatUint(n, 10) != port {
		return false, fmt.Errorf("%q has no valid port; allowed are 0 to 65535, where 0 takes any free one", s)
	}
	switch host {
	case "":
		return false, nil
	case "localhost":
		return true, nil
	}
	addr, err := netip.ParseAddr(host)
	if err != nil {
		return false, fmt.Errorf("%q has no valid host; allowed are an IP address and localhost", s)
	}
	return addr.Unmap().IsLoopback(), nil
}

// validName reports whether s is a metric name by Prometheus' rules, without the
// colon, which they keep for recording rules.
func validName(s string) bool {
	for i, c := range []byte(s) {
		letter := 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || c == '_'
		if !letter && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return s != ""
}

// listenError says that the endpoint could not be bound.
type listenError struct {
	addr  string
	cause error
}

func (e *listenError) Error() string {
	return "Metrics endpoint failed on " + e.addr + ": " + e.cause.Error()
}

func (e *listenError) Unwrap() error { return e.cause }

var errNotLoopback = errors.New("the address is not loopback and allow_public is false")

// Listen binds the endpoint. Its error is a sentence for the log, "Metrics
// endpoint failed on 127.0.0.1:9090: address already in use"; the service goes
// on without metrics (spec/003).
func Listen(cfg Config) (net.Listener, error) {
	ln, err := net.Listen("tcp", cfg.BindAddr)
	if err != nil {
		return nil, &listenError{cfg.BindAddr, shortest(err)}
	}
	// localhost is whatever the machine's hosts file says.
	if addr := ln.Addr().(*net.TCPAddr).AddrPort().Addr(); !cfg.AllowPublic && !addr.Unmap().IsLoopback() {
		_ = ln.Close()
		return nil, &listenError{cfg.BindAddr, errNotLoopback}
	}
	return ln, nil
}

// shortest strips what the sentence says already.
func shortest(err error) error {
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		return errno
	}
	if opErr, ok := errors.AsType[*net.OpError](err); ok {
		return opErr.Err
	}
	return err
}

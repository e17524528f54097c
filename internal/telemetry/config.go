package telemetry

import (
	"errors"
	"fmt"
	"net"

	"relayedge/internal/hostport"
	"relayedge/internal/keyfault"
)

// Config is the metrics section of the policy.
type Config struct {
	Enabled     bool   `key:"enabled" default:"true" doc:"serve metrics"`
	BindAddr    string `key:"bind_addr" default:"127.0.0.1:9090" doc:"address of the metrics endpoint"`
	AllowPublic bool   `key:"allow_public" default:"false" doc:"allow a bind_addr that is not loopback; the endpoint has no authentication, so firewall it"`
	Namespace   string `key:"namespace" default:"relayedge" doc:"prefix of every metric name"`
}

// Validate returns every fault of the section, joined. A bind_addr that is not
// loopback is one only if the endpoint is enabled.
func (c Config) Validate() error {
	var faults []error
	if bind, err := hostport.ParseBind(c.BindAddr); err != nil {
		faults = append(faults, keyfault.New("bind_addr", "%w", err))
	} else if !bind.TCP() {
		faults = append(faults, keyfault.New("bind_addr", "%q is no host:port, by which whoever collects metrics connects; write one, as in 127.0.0.1:9090", c.BindAddr))
	} else if c.Enabled && !bind.Loopback() && !c.AllowPublic {
		faults = append(faults, keyfault.New("bind_addr", "%q is not loopback and the endpoint has no authentication; "+
			"use 127.0.0.1 or [::1], or set allow_public: true and firewall it", c.BindAddr))
	}
	if !validName(c.Namespace) {
		faults = append(faults, keyfault.New("namespace", "%q cannot begin a metric name; "+
			"use letters, digits and _, and begin with a letter or _", c.Namespace))
	}
	return errors.Join(faults...)
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

var errNotLoopback = errors.New("the address is not loopback and allow_public is false")

// Listen binds the endpoint of a valid cfg. Its error is a sentence for the log,
// "Metrics endpoint failed on 127.0.0.1:9090: address already in use"; the
// service goes on without metrics (spec/003).
func Listen(cfg Config) (net.Listener, error) {
	ln, err := listen(cfg)
	if listenErr, ok := errors.AsType[*hostport.ListenError](err); ok {
		err = listenErr.Cause // the sentence names the address already
	}
	if err != nil {
		//lint:ignore ST1005 it is the log's sentence, word for word as spec/003 gives it
		return nil, fmt.Errorf("Metrics endpoint failed on %s: %w", cfg.BindAddr, err)
	}
	return ln, nil
}

func listen(cfg Config) (net.Listener, error) {
	bind, err := hostport.ParseBind(cfg.BindAddr)
	if err != nil {
		return nil, err
	}
	ln, err := bind.Listen()
	if err != nil {
		return nil, err
	}
	// localhost is whatever the machine's hosts file says.
	if addr := ln.Addr().(*net.TCPAddr).AddrPort().Addr(); !cfg.AllowPublic && !addr.Unmap().IsLoopback() {
		ln.Close()
		return nil, errNotLoopback
	}
	return ln, nil
}

//go:build !linux

package sockopt

import (
	"errors"
	"net"
	"net/netip"
	"time"
)

const keepAlive = time.Duration(0)

var keepAliveConfig = net.KeepAliveConfig{Enable: true, Idle: keepIdle, Interval: keepInterval, Count: keepProbes}

// Set leaves a socket as it is: the net package sets keepalive here.
func (o Options) Set(int) error { return nil }

// BindSource is for Linux alone, which can bind an address and leave the port open.
func BindSource(int, netip.Addr) error {
	return errors.ErrUnsupported
}

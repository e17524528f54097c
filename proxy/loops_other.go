//go:build !linux

package proxy

import (
	"errors"
	"net"

	"relayedge/proxy/loop"
	"relayedge/proxy/upstream"
)

// loopsWork is false where no kernel's poller is known: connections in memory,
// which a loop can watch everywhere, are for tests.
const loopsWork = false

func watchable(net.Listener) bool { return false }

func acceptOn(*loop.Loop, *listener, func(error)) (stop func(), err error) {
	return nil, errors.ErrUnsupported
}

func connectorOf(*loop.Loop) upstream.Connector { return nil }

//go:build !linux

package hostport

import "net"

func unpollable(ln net.Listener) net.Listener { return ln }

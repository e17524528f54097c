//go:build !unix

package proxy

import "net"

func rawSocket(net.Conn) socket { return nil }

package hostport

import (
	"net"
	"syscall"
	"testing"
)

// What a bind accepts has the socket options of the house.
func TestListenSetsOptions(t *testing.T) {
	for _, bind := range []string{"127.0.0.1:0", "[::1]:0", "[::]:0"} {
		b, err := ParseBind(bind)
		if err != nil {
			t.Fatal(err)
		}
		ln, err := b.Listen()
		if err != nil {
			t.Logf("this machine has no IPv6: %v", err)
			continue
		}
		defer ln.Close()
		client, err := net.Dial("tcp", ln.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		conn, err := ln.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		raw, err := conn.(*net.TCPConn).SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		raw.Control(func(fd uintptr) {
			if idle, err := syscall.GetsockoptInt(int(fd), syscall.IPPROTO_TCP, syscall.TCP_KEEPIDLE); err != nil || idle != 45 {
				t.Errorf("%s: TCP_KEEPIDLE is %d, %v", bind, idle, err)
			}
		})
	}
}

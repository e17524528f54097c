// Package testport hands out TCP ports of the loopback addresses to tests that
// tell a program where to listen, or that want a port where nobody does. The tests
// of several packages run at the same time, so that looking for a free port is not
// enough: between the look and the program's start another may find the same.
package testport

import (
	"math/rand/v2"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// The ports lie below those that the system gives to sockets by itself, so that
// no client's end and no listener on port 0 takes one.
const first, past = 12000, 28000

// given are the ports of this process's tests: none is given twice, for what one
// test has left in the kernel is no business of the next.
var given sync.Map

// Free returns a port on which nobody listens on 127.0.0.1 or ::1, and which no
// other test is given, of whatever package, until the test ends.
func Free(t testing.TB) int {
	t.Helper()
	for range 1000 {
		port := first + rand.IntN(past-first)
		if _, twice := given.LoadOrStore(port, true); twice {
			continue
		}
		// The UDP port of that number stands for the TCP port, across processes.
		token, err := net.ListenPacket("udp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err != nil {
			continue
		}
		if !free(port) {
			token.Close()
			continue
		}
		t.Cleanup(func() { token.Close() })
		return port
	}
	t.Fatal("no port is free")
	panic("unreachable")
}

func free(port int) bool {
	for _, host := range []string{"127.0.0.1", "::1"} {
		ln, err := net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(port)))
		if err == nil {
			ln.Close()
		} else if host == "127.0.0.1" || strings.Contains(err.Error(), "in use") {
			return false // any other fault of ::1 is the want of IPv6
		}
	}
	return true
}

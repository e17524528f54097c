package testport

import (
	"fmt"
	"net"
	"testing"
)

// What is given can be listened on, is given once, and is held against others
// until its test's end.
func TestFree(t *testing.T) {
	seen := map[int]bool{}
	var last string
	t.Run("while a test runs", func(t *testing.T) {
		for range 50 {
			port := Free(t)
			if seen[port] || port < first || port >= past {
				t.Errorf("port %d", port)
			}
			seen[port] = true
			last = fmt.Sprintf("127.0.0.1:%d", port)
			ln, err := net.Listen("tcp", last)
			if err != nil {
				t.Fatal(err)
			}
			ln.Close()
			if token, err := net.ListenPacket("udp", last); err == nil {
				token.Close()
				t.Errorf("port %d is not held", port)
			}
		}
	})
	token, err := net.ListenPacket("udp", last)
	if err != nil {
		t.Fatalf("held beyond the test's end: %v", err)
	}
	token.Close()
}

// Who listens already, on either address, keeps its port.
func TestTakenIsNotFree(t *testing.T) {
	for _, host := range []string{"127.0.0.1", "::1"} {
		ln, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
		if err != nil {
			t.Logf("this machine has no %s", host)
			continue
		}
		if free(ln.Addr().(*net.TCPAddr).Port) {
			t.Errorf("%s is taken for free", ln.Addr())
		}
		ln.Close()
	}
}

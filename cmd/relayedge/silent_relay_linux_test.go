package main_test

import (
	"fmt"
	"io"
	"net"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// A relay whose machine drops what is sent to it, here because its queue is full:
// clients are told within connect_timeout_secs, nothing stays half closed, and no slot
// stays taken.
func TestRelayThatDropsSYNs(t *testing.T) {
	t.Parallel()
	const clients = 60
	relay := fullQueue(t)
	e := runEdge(t, "listeners: [{name: public, bind: \"127.0.0.1:0\", tls: none}]\n"+withoutCaps+
		"upstreams: {relay: {addresses: ["+strconv.Quote(relay)+"], connect_timeout_secs: 1, health_check_secs: 0, client_address: none}}\n")
	var all sync.WaitGroup
	for range clients {
		all.Go(func() {
			conn, err := dial(t.Context(), "", e.listeners["public"], "")
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close()
			if b, err := io.ReadAll(conn); len(b) > 0 || isTimeout(err) {
				t.Errorf("a client gets %q, %v", b, err)
			}
		})
	}
	all.Wait()
	e.shows(t, `relayedge_connections{listener="public"} 0`, `relayedge_upstream_up{upstream="relay"} 0`,
		fmt.Sprintf("relayedge_connections_total %d", clients))
	_, body, err := get(e.metrics)
	if err != nil {
		t.Fatal(err)
	}
	ended := 0
	for _, m := range regexp.MustCompile(`(?m)^relayedge_ended_total\{reason="(\w+)"\} ([1-9]\d*)$`).FindAllStringSubmatch(body, -1) {
		n, _ := strconv.Atoi(m[2])
		ended += n
		if m[1] != "upstream_timeout" && m[1] != "upstream_unavailable" {
			t.Errorf("%d connections ended as %s", n, m[1])
		}
	}
	if ended != clients {
		t.Errorf("%d of %d connections have ended", ended, clients)
	}
	if err := eventually(func() error {
		if n := closeWait(t, e.listeners["public"], relay); n > 0 {
			return fmt.Errorf("%d sockets are left in CLOSE_WAIT", n)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}

// fullQueue is an address whose system drops what wants to connect to it.
func fullQueue(t *testing.T) string {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { syscall.Close(fd) })
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Listen(fd, 0); err != nil {
		t.Fatal(err)
	}
	name, err := syscall.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	address := fmt.Sprintf("127.0.0.1:%d", name.(*syscall.SockaddrInet4).Port)
	for range 16 {
		conn, err := net.DialTimeout("tcp", address, 2*time.Second)
		if isTimeout(err) {
			return address
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
	}
	t.Skip("this system's queue has no end")
	return ""
}

// closeWait counts the sockets at or towards one of the addresses whose peer has
// ended and which nobody has closed.
func closeWait(t *testing.T, addresses ...string) (n int) {
	t.Helper()
	text, err := os.ReadFile("/proc/self/net/tcp")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if len(fields) < 4 || fields[3] != "08" {
			continue
		}
		for _, address := range addresses {
			_, port, _ := net.SplitHostPort(address)
			number, _ := strconv.Atoi(port)
			if ends := fmt.Sprintf(":%04X", number); strings.HasSuffix(fields[1], ends) || strings.HasSuffix(fields[2], ends) {
				n++
				break
			}
		}
	}
	return n
}

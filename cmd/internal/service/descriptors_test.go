package service

import (
	"strings"
	"syscall"
	"testing"

	"relayedge/cmd/internal/policy"
)

func TestDescriptors(t *testing.T) {
	for _, row := range []struct {
		d      Descriptors
		needed int
		room   int
		short  bool
	}{
		{Descriptors{Limit: 256, Connections: 1000, Each: 2}, 2064, 96, true},
		{Descriptors{Limit: 256, Connections: 1000, Each: 2, Sockets: 3}, 2067, 96, true},
		{Descriptors{Limit: 256, Connections: 96, Each: 2}, 256, 96, false},
		{Descriptors{Limit: 20000, Connections: 10000, Each: 2, Sockets: 1}, 20065, 9967, true},
		{Descriptors{Limit: 20065, Connections: 10000, Each: 2, Sockets: 1}, 20065, 10000, false},
		{Descriptors{Limit: 20064, Connections: 10000, Each: 2, Sockets: 1}, 20065, 9999, true},
		{Descriptors{Limit: 30066, Connections: 10000, Each: 3, Sockets: 2}, 30066, 10000, false},
		{Descriptors{Limit: 1 << 30, Connections: 10000, Each: 1}, 10064, 1<<30 - 64, false},
		{Descriptors{Limit: 16, Connections: 2, Each: 2}, 68, 6, false},
		{Descriptors{Limit: 1, Connections: 1, Each: 3}, 67, 1, false},
		{Descriptors{Limit: 0, Connections: 1000, Each: 2}, 2064, 0, false},
	} {
		if n, r, s := row.d.Needed(), row.d.Room(), row.d.Short(); n != row.needed || r != row.room || s != row.short {
			t.Errorf("%+v needs %d, has room for %d, short %v; want %+v", row.d, n, r, s, row)
		}
	}
}

func TestDescriptorLimitIsTheProcess(t *testing.T) {
	var l syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l); err != nil {
		t.Skip(err)
	}
	if got := DescriptorLimit(); uint64(got) != min(uint64(l.Cur), 1<<30) {
		t.Errorf("%d, want %d", got, l.Cur)
	}
	if l.Cur != l.Max {
		t.Errorf("the soft limit %d is not raised to the hard one, %d", l.Cur, l.Max)
	}
}

// The shortage is a fault of check --machine, with both numbers.
func TestMachineFindsTheShortage(t *testing.T) {
	p, err := policy.LoadBytes("p.yaml", []byte("limits:\n  max_connections: 1000\n"))
	if err != nil {
		t.Fatal(err)
	}
	m := &Machine{Policy: p, file: "p.yaml", limit: 256}
	m.Descriptors("limits.max_connections", Descriptors{Connections: 1000, Each: 2, Sockets: 1})
	if err := m.err(); err == nil || !strings.HasPrefix(err.Error(), "p.yaml:2: limits.max_connections: 1000 connections need 2065 descriptors, and this process may have 256, enough for 96; write LimitNOFILE=2065 ") {
		t.Errorf("%v", err)
	}
	m = &Machine{Policy: p, file: "p.yaml", limit: 4096}
	m.Descriptors("limits.max_connections", Descriptors{Connections: 1000, Each: 2, Sockets: 1})
	if err := m.err(); err != nil {
		t.Error(err)
	}
}

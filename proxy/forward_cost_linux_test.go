package proxy

import (
	"crypto/tls"
	"io"
	"log/slog"
	"net"
	"testing"

	"relayedge/proxy/certs"
)

// echoCost is how many times a message of 1 KB there and back allocates, in the
// whole process: the runtime's own work may allocate now and then, what a message
// costs is there each time.
func echoCost(t *testing.T, client, server net.Conn) float64 {
	t.Helper()
	message, got := make([]byte, 1024), make([]byte, 1024)
	echo := func() {
		for _, ends := range [][2]net.Conn{{client, server}, {server, client}} {
			if _, err := ends[0].Write(message); err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadFull(ends[1], got); err != nil {
				t.Fatal(err)
			}
		}
	}
	least := testing.AllocsPerRun(50, echo)
	for range 4 {
		least = min(least, testing.AllocsPerRun(50, echo))
	}
	return least
}

// A message that passes allocates nothing. With TLS it is what crypto/tls takes
// itself: as much as at the two ends of a connection, and once for the read that
// finds no further record.
func TestForwardingAllocatesNothing(t *testing.T) {
	if underRace {
		t.Skip("the race detector allocates")
	}
	for _, row := range []struct {
		way  way
		most float64
	}{
		{plainWay, 0},
		{secureWay, directCost(t) + 1},
	} {
		t.Run(row.way.name, func(t *testing.T) {
			onKernelEngines(t, func(t *testing.T) {
				client, relay := newKernelEdge(t, row.way, nil).pair()
				if got := echoCost(t, client, relay); got > row.most {
					t.Errorf("a message there and back allocates %v times, want %v", got, row.most)
				}
			})
		})
	}
}

// directCost is echoCost of a TLS connection without an edge.
func directCost(t *testing.T) float64 {
	t.Helper()
	store, err := certs.Open(certs.Config{SelfIssued: []string{"relay.example.org"}}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ln := listenKernel(t, "IPv4")
	defer ln.Close()
	dialled, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer dialled.Close()
	accepted, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer accepted.Close()
	client := tls.Client(dialled, clientTLS("relay.example.org"))
	server := tls.Server(accepted, &tls.Config{GetCertificate: store.Certificate})
	done := make(chan error, 1)
	go func() { done <- client.Handshake() }()
	if err := server.Handshake(); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	return echoCost(t, client, server)
}

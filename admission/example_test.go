package admission_test

import (
	"expvar"
	"io"
	"log"
	"net"

	"relayedge/admission"
)

// The program of the package comment; a test holds the two together.
func ExampleListener() {
	gate, err := admission.NewGate(admission.DefaultLimits())
	if err != nil {
		log.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:7777")
	if err != nil {
		log.Fatal(err)
	}
	refusals := expvar.NewMap("refusals")
	ln = admission.NewListener(ln, gate, func(reason admission.Reason) {
		refusals.Add(string(reason), 1)
	})
	for {
		conn, err := ln.Accept()
		if err != nil {
			log.Fatal(err)
		}
		go func() {
			defer conn.Close() // gives the slot back
			io.Copy(conn, conn)
		}()
	}
}

// Command naive is a TLS proxy as one writes it in Go in an afternoon: a goroutine
// for each direction, io.Copy, and a PROXY v2 header for the backend. It is the
// measure for what relayedge costs beside doing it oneself. It has no limits, no
// timeouts and no metrics, and must not be exposed.
package main

import (
	"crypto/tls"
	"flag"
	"io"
	"log"
	"net"

	"relayedge/internal/proxyheader"
)

func main() {
	listen := flag.String("listen", "", "where to listen, host:port")
	backend := flag.String("backend", "", "where connections go, host:port")
	certificate := flag.String("certificate", "", "PEM file of the certificate")
	key := flag.String("key", "", "PEM file of its key")
	flag.Parse()
	pair, err := tls.LoadX509KeyPair(*certificate, *key)
	if err != nil {
		log.Fatal(err)
	}
	ln, err := tls.Listen("tcp", *listen, &tls.Config{Certificates: []tls.Certificate{pair}})
	if err != nil {
		log.Fatal(err)
	}
	for {
		client, err := ln.Accept()
		if err != nil {
			log.Fatal(err)
		}
		go proxy(client.(*tls.Conn), *backend)
	}
}

func proxy(client *tls.Conn, backend string) {
	defer client.Close()
	if client.Handshake() != nil {
		return
	}
	relay, err := net.Dial("tcp", backend)
	if err != nil {
		return
	}
	defer relay.Close()
	header, err := proxyheader.AppendV2(nil, proxyheader.Header{
		Version:     2,
		Source:      client.RemoteAddr().(*net.TCPAddr).AddrPort(),
		Destination: client.LocalAddr().(*net.TCPAddr).AddrPort(),
	}, false)
	if err != nil {
		return
	}
	if _, err := relay.Write(header); err != nil {
		return
	}
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		io.Copy(client, relay)
		client.CloseWrite()
	}()
	io.Copy(relay, client)
	relay.(*net.TCPConn).CloseWrite()
	<-answered
}

package main

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"time"
)

// helpers are what this program does in processes of its own, by their first
// argument.
var helpers = map[string]func(args []string) error{
	"backend": func([]string) error { return serveBackend(os.Stdin, os.Stdout) },
	"hold":    hold,
	"streams": streams,
}

// ways are the ways in which a connection is held open.
var ways = map[string]func(c *clients) (net.Conn, error){
	"idle": func(c *clients) (net.Conn, error) {
		conn, err := c.connect(c.plain())
		if err != nil {
			return nil, err
		}
		if err := c.echoed(conn); err != nil {
			conn.NetConn().Close()
			return nil, err
		}
		return conn.NetConn(), nil
	},
	"silent": func(c *clients) (net.Conn, error) { return c.dialer().Dial("tcp", c.address) },
	"half": func(c *clients) (net.Conn, error) {
		conn, err := c.dialer().Dial("tcp", c.address)
		if err != nil {
			return nil, err
		}
		hello := c.hello()
		_, err = conn.Write(hello[:len(hello)/2])
		return conn, err
	},
}

// hold opens connections and holds them until standard input ends.
func hold(args []string) error {
	if len(args) != 4 {
		return errors.New("usage: hold WAY COUNT ADDRESS CERTIFICATE")
	}
	way := ways[args[0]]
	n, err := strconv.Atoi(args[1])
	if way == nil || err != nil {
		return fmt.Errorf("hold: %q %q", args[0], args[1])
	}
	c, err := newClients(args[2], args[3])
	if err != nil {
		return err
	}
	conns := make([]net.Conn, n)
	if err := each(n, func(_, i int) (err error) {
		conns[i], err = way(c)
		return err
	}); err != nil {
		return err
	}
	fmt.Println("open")
	io.Copy(io.Discard, os.Stdin)
	for _, conn := range conns {
		conn.Close()
	}
	return nil
}

// recorder is a connection that keeps what is written and has nothing to read.
type recorder struct {
	net.Conn
	bytes.Buffer
}

func (r *recorder) Write(b []byte) (int, error)      { return r.Buffer.Write(b) }
func (r *recorder) Read([]byte) (int, error)         { return 0, io.EOF }
func (r *recorder) Close() error                     { return nil }
func (r *recorder) SetWriteDeadline(time.Time) error { return nil }

// hello is a ClientHello.
func (c *clients) hello() []byte {
	var r recorder
	tls.Client(&r, c.plain()).Handshake()
	return r.Bytes()
}

// streams keeps four bulk streams going, two each way, until standard input ends.
func streams(args []string) error {
	if len(args) != 2 {
		return errors.New("usage: streams ADDRESS CERTIFICATE")
	}
	c, err := newClients(args[0], args[1])
	if err != nil {
		return err
	}
	wants := []byte{wantDownload, wantUpload, wantDownload, wantUpload}
	conns, err := c.open(len(wants), nothing)
	if err != nil {
		return err
	}
	defer leave(conns)
	ended := make(chan error, 1)
	go func() {
		const endless = 1 << 50
		ended <- c.bulk(conns, wants, endless, func() { fmt.Println("flowing") })
	}()
	told := make(chan struct{})
	go func() {
		io.Copy(io.Discard, os.Stdin)
		close(told)
	}()
	select {
	case <-told:
		return nil
	case err := <-ended:
		return fmt.Errorf("a stream has ended: %w", err)
	}
}

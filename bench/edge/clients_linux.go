package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	// patience is how long a client waits for anything.
	patience = 30 * time.Second
	// workers is how many clients connect at once.
	workers = 16
	// message is the size of an echo.
	message = 1 << 10
)

// bindAddressNoPort is IP_BIND_ADDRESS_NO_PORT of ip(7).
const bindAddressNoPort = 24

// clients are those of one proxy.
type clients struct {
	address string
	roots   *x509.CertPool
	next    atomic.Uint32 // the number of the next one's address
}

// newClients wants the file of the certificate that all proxies serve.
func newClients(address, certificate string) (*clients, error) {
	pem, err := os.ReadFile(certificate)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%s has no certificate", certificate)
	}
	return &clients{address: address, roots: roots}, nil
}

// dialer dials from an address of its own, so that no per-client cap is met. The port
// is chosen with the destination in view: ports do not run out then.
func (c *clients) dialer() *net.Dialer {
	n := c.next.Add(1)
	return &net.Dialer{
		Timeout:   patience,
		KeepAlive: -1,
		LocalAddr: &net.TCPAddr{IP: net.IPv4(127, byte(16+n/62500%64), byte(n/250%250), byte(1+n%250))},
		Control: func(_, _ string, raw syscall.RawConn) error {
			var failed error
			return errors.Join(raw.Control(func(fd uintptr) {
				failed = syscall.SetsockoptInt(int(fd), syscall.SOL_IP, bindAddressNoPort, 1)
			}), failed)
		},
	}
}

// suite is what every proxy is to choose.
const suite = tls.TLS_AES_128_GCM_SHA256

// config is a client's. Sessions are resumed where there is a cache.
func (c *clients) config(group tls.CurveID, cache tls.ClientSessionCache) *tls.Config {
	return &tls.Config{
		RootCAs:            c.roots,
		ServerName:         "localhost",
		MinVersion:         tls.VersionTLS13,
		CurvePreferences:   []tls.CurveID{group},
		ClientSessionCache: cache,
		VerifyConnection: func(s tls.ConnectionState) error {
			if s.CipherSuite != suite || s.CurveID != group {
				return fmt.Errorf("%s over %s was chosen", tls.CipherSuiteName(s.CipherSuite), s.CurveID)
			}
			return nil
		},
	}
}

// plain is the configuration for all loads whose handshakes are not measured.
func (c *clients) plain() *tls.Config { return c.config(tls.X25519, nil) }

func (c *clients) connect(config *tls.Config) (*tls.Conn, error) {
	raw, err := c.dialer().DialContext(context.Background(), "tcp", c.address)
	if err != nil {
		return nil, err
	}
	raw.SetDeadline(time.Now().Add(patience))
	conn := tls.Client(raw, config)
	if err := conn.Handshake(); err != nil {
		raw.Close()
		return nil, err
	}
	return conn, nil
}

// echo sends b, whose first byte is set, and reads it back.
func (c *clients) echo(conn net.Conn, b []byte) error {
	b[0] = wantEcho
	if _, err := conn.Write(b); err != nil {
		return err
	}
	_, err := io.ReadFull(conn, b)
	return err
}

// visit connects, has one byte echoed and leaves.
func (c *clients) visit(config *tls.Config) (resumed bool, err error) {
	conn, err := c.connect(config)
	if err != nil {
		return false, err
	}
	defer conn.Close()
	return conn.ConnectionState().DidResume, c.echo(conn, make([]byte, 1))
}

// each does something for every number below n, a few at once, each worker with
// what is its own. The first error ends it.
func each(n int, do func(worker, i int) error) error {
	var next atomic.Int64
	failures := make(chan error, workers)
	var stop atomic.Bool
	var all sync.WaitGroup
	for worker := range workers {
		all.Go(func() {
			for !stop.Load() {
				i := int(next.Add(1)) - 1
				if i >= n {
					return
				}
				if err := do(worker, i); err != nil {
					stop.Store(true)
					failures <- err
					return
				}
			}
		})
	}
	all.Wait()
	close(failures)
	return <-failures
}

// visits makes n visits. With resume, each worker has a session of before.
func (c *clients) visits(n int, group tls.CurveID, resume bool) (ready func() error, run func() (int, error)) {
	configs := make([]*tls.Config, workers)
	ready = func() error {
		for i := range configs {
			if !resume {
				configs[i] = c.config(group, nil)
				continue
			}
			configs[i] = c.config(group, tls.NewLRUClientSessionCache(4))
			if _, err := c.visit(configs[i]); err != nil {
				return err
			}
		}
		return nil
	}
	run = func() (int, error) {
		var missed atomic.Int64
		err := each(n, func(worker, _ int) error {
			resumed, err := c.visit(configs[worker])
			if resume && !resumed {
				missed.Add(1)
			}
			return err
		})
		if m := int(missed.Load()); err == nil && m > n/100 {
			err = fmt.Errorf("of %d sessions, %d were not resumed", n, m)
		}
		return n, err
	}
	return ready, run
}

// open opens n connections and has them do what comes first.
func (c *clients) open(n int, first func(conn net.Conn) error) ([]*tls.Conn, error) {
	conns := make([]*tls.Conn, n)
	config := c.plain()
	err := each(n, func(_, i int) error {
		conn, err := c.connect(config)
		if err != nil {
			return err
		}
		conns[i] = conn
		return first(conn)
	})
	if err != nil {
		leave(conns)
		return nil, err
	}
	return conns, nil
}

// echoed is what an echo connection does first.
func (c *clients) echoed(conn net.Conn) error {
	if err := c.echo(conn, make([]byte, message)); err != nil {
		return err
	}
	return conn.SetDeadline(time.Time{})
}

// nothing is what a bulk connection does first.
func nothing(net.Conn) error { return nil }

// leave closes the connections without a word to those behind them.
func leave(conns []*tls.Conn) {
	for _, conn := range conns {
		if conn != nil {
			conn.NetConn().Close()
		}
	}
}

// echoes echoes over all connections for a while: as fast as it goes, or rate in a
// second over all of them, each connection in turn. It returns what every echo
// took, from when it was due.
func (c *clients) echoes(conns []*tls.Conn, period time.Duration, rate int) ([]time.Duration, error) {
	n := len(conns)
	took := make([][]time.Duration, n)
	failed := make(chan error, n)
	began := time.Now()
	end := began.Add(period)
	var interval time.Duration // of one connection
	if rate > 0 {
		interval = time.Duration(n) * time.Second / time.Duration(rate)
	}
	var all sync.WaitGroup
	for i, conn := range conns {
		all.Go(func() {
			conn.SetDeadline(end.Add(patience))
			b := make([]byte, message)
			for due := began.Add(interval * time.Duration(i) / time.Duration(n)); ; due = due.Add(interval) {
				if rate == 0 {
					due = time.Now()
				}
				if !due.Before(end) {
					return
				}
				time.Sleep(time.Until(due))
				if err := c.echo(conn, b); err != nil {
					failed <- err
					return
				}
				took[i] = append(took[i], time.Since(due))
			}
		})
	}
	all.Wait()
	close(failed)
	return slices.Concat(took...), <-failed
}

// percentile of what echoes took.
func percentile(took []time.Duration, part float64) (time.Duration, error) {
	if len(took) == 0 {
		return 0, errors.New("nothing was echoed")
	}
	slices.Sort(took)
	return took[min(int(part*float64(len(took))), len(took)-1)], nil
}

// bulk moves size bytes each way over as many connections as there are wants, and
// tells when bytes flow.
func (c *clients) bulk(conns []*tls.Conn, wants []byte, size int64, flowing func()) error {
	failed := make(chan error, len(conns))
	var all, begun sync.WaitGroup
	begun.Add(len(conns))
	go func() {
		begun.Wait()
		flowing()
	}()
	for i, conn := range conns {
		all.Go(func() {
			begins := sync.OnceFunc(begun.Done)
			defer begins()
			conn.SetDeadline(time.Now().Add(10 * patience))
			if err := stream(conn, wants[i], size, begins); err != nil {
				failed <- err
			}
		})
	}
	all.Wait()
	close(failed)
	return <-failed
}

func stream(conn net.Conn, want byte, size int64, begins func()) error {
	b := make([]byte, 64<<10)
	b[0] = want
	binary.BigEndian.PutUint64(b[1:], uint64(size))
	if _, err := conn.Write(b[:bulkHead]); err != nil {
		return err
	}
	if want == wantDownload {
		for size > 0 {
			n, err := conn.Read(b)
			if err != nil {
				return err
			}
			begins()
			size -= int64(n)
		}
		return nil
	}
	for size > 0 {
		n, err := conn.Write(b[:min(size, int64(len(b)))])
		if err != nil {
			return err
		}
		begins()
		size -= int64(n)
	}
	_, err := io.ReadFull(conn, b[:1])
	return err
}

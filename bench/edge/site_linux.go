package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"time"
)

// perAddress is how many connections one address may have; relayedge's default.
const perAddress = 64

// site is where proxies are run.
type site struct {
	folder string // of certificate, configurations, logs and what was built
	tree   string // the root of the system that the peers are of; / for this one
	engine string // relayedge's
	load   load
	number int // of the proxies that were started so far
}

// load is how much is done for a figure.
type load struct {
	handshakes int           // of each kind
	refusals   int           // at most
	period     time.Duration // of echoes, and at most of refusals
	bulk       int64         // bytes each way
	held       int           // connections whose memory is measured
	settle     time.Duration // from the last of them to the measurement
	watch      time.Duration // of their CPU time
}

// full is the load of what is published. Five proxies open their connections one
// after the other: the first of them have waited for less than a minute then.
var full = load{
	handshakes: 2000,
	refusals:   20000,
	period:     1500 * time.Millisecond,
	bulk:       1 << 30,
	held:       6000,
	settle:     13 * time.Second,
	watch:      5 * time.Second,
}

// scaled is the load for trying. The waits are as they are where they let a
// process come to rest.
func (l load) scaled(by float64) load {
	count := func(n int) int { return max(workers, int(float64(n)*by)) }
	last := func(d time.Duration) time.Duration { return max(100*time.Millisecond, time.Duration(float64(d)*by)) }
	return load{
		handshakes: count(l.handshakes),
		refusals:   count(l.refusals),
		period:     last(l.period),
		bulk:       max(1<<20, int64(float64(l.bulk)*by)),
		held:       count(l.held),
		settle:     last(l.settle),
		watch:      last(l.watch),
	}
}

func (s *site) certificate() string { return filepath.Join(s.folder, "certificate.pem") }

// connections is what a proxy is told that it may have.
func (l load) connections() int { return max(2000, l.held+1000) }

// proxy is one that runs.
type proxy struct {
	*process
	name    string
	clients *clients
	backend *helper
}

func (p *proxy) end() {
	p.stop()
	p.backend.close()
}

// launch starts a peer with a backend of its own, and waits until it serves. With
// handshakes, its handshakes may be many and slow.
func (s *site) launch(of *peer, handshakes bool) (*proxy, error) {
	backend, at, err := help("backend")
	if err != nil {
		return nil, err
	}
	p, err := s.run(of, at, handshakes)
	if err != nil {
		backend.close()
		return nil, fmt.Errorf("%s: %w", of.name, err)
	}
	p.backend = backend
	if err := p.serves(); err != nil {
		p.end()
		return nil, fmt.Errorf("%s does not serve: %w; it says: %s", of.name, err, p.said())
	}
	return p, nil
}

func (s *site) run(of *peer, backend string, handshakes bool) (*proxy, error) {
	s.number++
	listen, err := s.freeAddress()
	if err != nil {
		return nil, err
	}
	conf := fmt.Sprintf("%s-%d.conf", of.name, s.number)
	root, folder, program := "/", s.folder, of.program
	switch {
	case !of.debian:
		program = filepath.Join(s.folder, program)
	case s.tree != "/":
		root, folder = s.tree, inTree
	}
	engine := s.engine
	if of.name == "stream" {
		engine = "stream"
	}
	told := setting{
		Folder: folder, Conf: conf, Listen: listen, Backend: backend, Engine: engine,
		CPUs: runtime.NumCPU(), Connections: s.load.connections(), PerAddress: perAddress,
		Descriptors: 2*s.load.connections() + 1000, Handshakes: handshakes,
		Module: streamModule(root), Root: os.Geteuid() == 0,
	}
	if of.conf != "" {
		text, err := of.configuration(told)
		if err != nil {
			return nil, err
		}
		if err := os.WriteFile(filepath.Join(s.folder, conf), text, 0o644); err != nil {
			return nil, err
		}
	}
	process, err := start(program, of.args(told), root, filepath.Join(s.folder, conf+".log"))
	if err != nil {
		return nil, err
	}
	c, err := newClients(listen, s.certificate())
	if err != nil {
		process.stop()
		return nil, err
	}
	return &proxy{process: process, name: of.name, clients: c}, nil
}

// serves waits until a connection comes through, and makes a few more, for what the
// first ones cost once.
func (p *proxy) serves() error {
	config := p.clients.plain()
	for deadline := time.Now().Add(patience); ; {
		_, err := p.clients.visit(config)
		if err == nil {
			break
		}
		select {
		case <-p.gone:
			return errors.New("it has ended")
		case <-time.After(20 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			return err
		}
	}
	return each(2*workers, func(_, _ int) error {
		_, err := p.clients.visit(config)
		return err
	})
}

// cost is the CPU time that the proxy uses for one of the operations of which run
// does some.
func (p *proxy) cost(run func() (int, error)) (time.Duration, error) {
	if err := p.rest(); err != nil {
		return 0, err
	}
	before, err := p.cpu()
	if err != nil {
		return 0, err
	}
	n, err := run()
	if err != nil {
		return 0, err
	}
	if err := p.rest(); err != nil { // to the end of what was begun
		return 0, err
	}
	after, err := p.cpu()
	if err != nil {
		return 0, err
	}
	return (after - before) / time.Duration(n), nil
}

// streamModule is nginx's module for streams, below a root, if it is one.
func streamModule(root string) string {
	const module = "/usr/lib/nginx/modules/ngx_stream_module.so"
	if _, err := os.Stat(filepath.Join(root, module)); err != nil {
		return ""
	}
	return module
}

// freeAddress is one that nobody listens on, below the ports that the system gives
// to connections by itself.
func (s *site) freeAddress() (string, error) {
	for port := 8000 + s.number; port < 9900; port++ {
		address := fmt.Sprintf("127.0.0.1:%d", port)
		if ln, err := net.Listen("tcp", address); err == nil {
			return address, ln.Close()
		}
	}
	return "", errors.New("no port is free")
}

// enoughDescriptors raises the limit as far as it goes, for the programs that are
// started too, and lowers what is held to what fits into one process.
func (l *load) enoughDescriptors() error {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return err
	}
	limit.Cur = limit.Max
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return err
	}
	const beside = 3100 // for what the peers are told beyond, two a connection, and their own
	if limit.Max < uint64(2*l.held+beside) {
		l.held = max(workers, (int(limit.Max)-beside)/2)
		fmt.Printf("descriptors: %d are allowed, so %d connections are held\n", limit.Max, l.held)
	}
	return nil
}

package hostport

import (
	"errors"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"
)

// Socket is a listening socket of this process. While the sockets are paused its
// Accept waits, and who connects waits in the kernel's queue, which a process that
// has the same socket goes on with.
type Socket struct {
	net.Listener // static: of TCP, or a unix socket
	key          string

	mu      sync.Mutex
	changed *sync.Cond // of mu
	paused  bool
	closed  bool
	used    bool         // somebody has accepted
	waits   bool         // somebody waits in Accept, and has dealt with what it got before
	watch   []func(bool) // see OnPause
}

// set holds the sockets of the process, and those that it has from the process
// before it.
type set struct {
	mu        sync.Mutex
	paused    bool
	open      []*Socket
	inherited map[string][]*os.File // by key, those that nobody listens on yet
	keep      bool                  // files of unix sockets stay when those close
}

var sockets set

// key names a socket, however its bind is written.
func (b Bind) key() string {
	if b.TCP() {
		return netip.AddrPortFrom(b.Host, b.Port).String()
	}
	return b.text
}

// add makes a socket one of the process's.
func (s *set) add(key string, ln net.Listener) *Socket {
	socket := &Socket{Listener: unpollable(ln), key: key}
	socket.changed = sync.NewCond(&socket.mu)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.paused {
		socket.pause(true)
	}
	s.open = append(s.open, socket)
	return socket
}

func (s *set) remove(socket *Socket) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open = slices.DeleteFunc(s.open, func(other *Socket) bool { return other == socket })
}

// take takes a socket that was inherited, or nil.
func (s *set) take(key string) net.Listener {
	s.mu.Lock()
	defer s.mu.Unlock()
	files := s.inherited[key]
	if len(files) == 0 {
		return nil
	}
	s.inherited[key] = files[1:]
	defer files[0].Close() // the listener has its own
	ln, err := net.FileListener(files[0])
	if err != nil {
		return nil
	}
	if unix, ok := ln.(*net.UnixListener); ok {
		unix.SetUnlinkOnClose(false)
	}
	return ln
}

// Handed is a socket on its way from one process to the next.
type Handed struct {
	Key  string
	File *os.File
}

// Sockets returns the sockets of the process, for the one that takes its place. The
// caller closes them.
func Sockets() (handed []Handed, err error) {
	sockets.mu.Lock()
	defer sockets.mu.Unlock()
	for _, socket := range sockets.open {
		ln, ok := socket.Listener.(interface{ File() (*os.File, error) })
		if !ok {
			continue
		}
		f, err := ln.File()
		if errors.Is(err, net.ErrClosed) {
			continue
		}
		if err != nil {
			for _, h := range handed {
				h.File.Close()
			}
			return nil, err
		}
		handed = append(handed, Handed{socket.key, f})
	}
	return handed, nil
}

// Inherit gives this process the sockets of the one before it: whoever listens where
// one of them does gets that one. All sockets are paused until Resume.
func Inherit(handed []Handed) {
	sockets.mu.Lock()
	defer sockets.mu.Unlock()
	sockets.paused = true
	sockets.inherited = make(map[string][]*os.File)
	for _, h := range handed {
		sockets.inherited[h.Key] = append(sockets.inherited[h.Key], h.File)
	}
}

// Rest returns the inherited sockets that nobody listens on: they are the caller's.
func Rest() (rest []net.Listener) {
	sockets.mu.Lock()
	keys := sockets.inherited
	sockets.inherited = nil
	sockets.mu.Unlock()
	for _, files := range keys {
		for _, f := range files {
			if ln, err := net.FileListener(f); err == nil {
				if unix, ok := ln.(*net.UnixListener); ok {
					unix.SetUnlinkOnClose(false)
				}
				rest = append(rest, ln)
			}
			f.Close()
		}
	}
	return rest
}

// Pause has nobody accept on the process's sockets until Resume. When it returns,
// whoever accepts on those that are named has dealt with all connections that it got;
// it waits for that so long at most, and reports whether it is so.
func Pause(patience time.Duration, named ...net.Listener) bool {
	deadline := time.Now().Add(patience)
	setPaused(true)
	done := true
	for _, ln := range named {
		if socket, ok := ln.(*Socket); ok {
			done = socket.parked(deadline) && done
		}
	}
	return done
}

// Resume ends Pause.
func Resume() { setPaused(false) }

func setPaused(paused bool) {
	sockets.mu.Lock()
	defer sockets.mu.Unlock()
	sockets.paused = paused
	for _, socket := range sockets.open {
		socket.pause(paused)
	}
}

// KeepFiles says whether the files of unix sockets stay when those are closed: they
// are another process's then.
func KeepFiles(keep bool) {
	sockets.mu.Lock()
	defer sockets.mu.Unlock()
	sockets.keep = keep
}

func keepsFiles() bool {
	sockets.mu.Lock()
	defer sockets.mu.Unlock()
	return sockets.keep
}

// OnPause has f called at each pause and its end, for those who accept on the
// descriptor itself: when f has returned they do as it says.
func (s *Socket) OnPause(f func(paused bool)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.watch = append(s.watch, f)
	if s.paused {
		f(true)
	}
}

func (s *Socket) pause(paused bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.paused == paused {
		return
	}
	s.paused = paused
	if ln, ok := s.Listener.(interface{ SetDeadline(time.Time) error }); ok {
		var t time.Time
		if paused {
			t = time.Unix(1, 0) // wakes whoever waits
		}
		ln.SetDeadline(t)
	}
	for _, f := range s.watch {
		f(paused)
	}
	s.changed.Broadcast()
}

// parked waits until nobody is between two calls of Accept.
func (s *Socket) parked(deadline time.Time) bool {
	late := time.AfterFunc(time.Until(deadline), func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.changed.Broadcast()
	})
	defer late.Stop()
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.used && !s.waits && !s.closed {
		if !time.Now().Before(deadline) {
			return false
		}
		s.changed.Wait()
	}
	return true
}

// Accept waits for the next connection, and for the end of a pause.
func (s *Socket) Accept() (net.Conn, error) {
	for {
		s.mu.Lock()
		s.used = true
		for s.paused && !s.closed {
			s.park(true)
			s.changed.Wait()
		}
		s.park(false)
		s.mu.Unlock()
		conn, err := s.Listener.Accept()
		if err == nil || !errors.Is(err, os.ErrDeadlineExceeded) {
			return conn, err
		}
	}
}

// park requires mu.
func (s *Socket) park(waits bool) {
	if s.waits != waits {
		s.waits = waits
		s.changed.Broadcast()
	}
}

// Close closes the socket of this process. Other processes that have it go on.
func (s *Socket) Close() error {
	sockets.remove(s)
	s.mu.Lock()
	s.closed = true
	s.changed.Broadcast()
	s.mu.Unlock()
	return s.Listener.Close()
}

// Unpoll takes the socket out of the runtime's poller, for those who accept on the
// descriptor by other means: Accept fails from here on.
func (s *Socket) Unpoll() error {
	if ln, ok := s.Listener.(interface{ Unpoll() error }); ok {
		return ln.Unpoll()
	}
	return nil
}

// SyscallConn gives access to the descriptor, for those who set options or accept on it.
func (s *Socket) SyscallConn() (syscall.RawConn, error) {
	conn, ok := s.Listener.(syscall.Conn)
	if !ok {
		return nil, errors.ErrUnsupported
	}
	return conn.SyscallConn()
}

// File returns a copy of the descriptor.
func (s *Socket) File() (*os.File, error) {
	ln, ok := s.Listener.(interface{ File() (*os.File, error) })
	if !ok {
		return nil, errors.ErrUnsupported
	}
	return ln.File()
}

// adopt returns the unix socket of a path that was inherited, if its file is there still.
func adopt(path string) net.Listener {
	info, err := os.Lstat(path)
	if err != nil || info.Mode().Type() != fs.ModeSocket {
		return nil
	}
	unix, ok := sockets.take(unixPrefix + path).(*net.UnixListener)
	if !ok {
		return nil
	}
	return &unixListener{UnixListener: unix, path: path, made: info}
}

package loop

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// eventBatch is how many events are taken from the kernel at once.
const eventBatch = 128

// changes are what the kernel reports of a connection, once per change.
const changes = unix.EPOLLIN | unix.EPOLLOUT | unix.EPOLLRDHUP | unix.EPOLLPRI | unix.EPOLLET&0xffffffff

// lasting are changes after which a short read is not the last: it stops before
// the end of the stream, and at each byte of a peer's urgent data.
const lasting = unix.EPOLLRDHUP | unix.EPOLLHUP | unix.EPOLLERR | unix.EPOLLPRI

// Slots of the table that are no connections.
const (
	wakeSlot = -1 - iota
	timerSlot
	firstListenerSlot
)

// slot is a place in a poller's table. Its generation differs from that of who
// had the place before.
type slot struct {
	index      int32
	generation int32 // never 0 for a place that is taken
}

// poller is the kernel's epoll, and a loop's sleep in the runtime's.
//
// The loop runs inside one call of RawConn.Read on the epoll descriptor, which is
// itself readable when a connection has something to report: so the runtime's
// poller wakes the goroutine, and no thread is blocked in a system call. The
// wake-up comes once per change, so that nothing may be left in the inner epoll
// when the goroutine goes to sleep.
type poller struct {
	file   *os.File // of the epoll descriptor
	fd     int
	waker  int // an eventfd
	timer  int // a timerfd
	armed  time.Time
	events []unix.EpollEvent
	found  []occurrence

	// control is held while the kernel is told what to watch, so that close waits
	// for it: the descriptor's number may be another's afterwards.
	control sync.RWMutex
	closed  bool // guarded by control

	mu        sync.Mutex
	table     []entry
	free      []int32
	acceptors []*acceptor // by firstListenerSlot - index; nil: it is closed
}

type entry struct {
	conn       *Conn // nil: the place is free
	generation int32
}

// Open returns a loop for sockets of the kernel's. From so many reads, or writes,
// in a turn on they are made by one system call, where the kernel has io_uring and
// allows it; 0 is never. It fails where the process has no descriptors left.
func Open(together int) (*Loop, error) {
	p := &poller{events: make([]unix.EpollEvent, eventBatch), found: make([]occurrence, 0, eventBatch)}
	fds := []*int{&p.fd, &p.waker, &p.timer}
	open := []func() (int, error){
		func() (int, error) { return unix.EpollCreate1(unix.EPOLL_CLOEXEC) },
		func() (int, error) { return unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC) },
		func() (int, error) {
			return unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
		},
	}
	for i, f := range open {
		fd, err := f()
		if err != nil {
			for _, opened := range fds[:i] {
				unix.Close(*opened)
			}
			return nil, fmt.Errorf("an event loop: %w", err)
		}
		*fds[i] = fd
	}
	err := p.add(p.waker, unix.EPOLLIN|unix.EPOLLET&0xffffffff, slot{wakeSlot, 0})
	if err == nil {
		err = p.add(p.timer, unix.EPOLLIN|unix.EPOLLET&0xffffffff, slot{timerSlot, 0})
	}
	if err == nil {
		err = unix.SetNonblock(p.fd, true)
	}
	if err != nil {
		p.close()
		return nil, fmt.Errorf("an event loop: %w", err)
	}
	p.file = os.NewFile(uintptr(p.fd), "epoll")
	l := newLoop(p)
	if together > 0 {
		if b, err := newBatch(l, together); err == nil {
			l.batch = b
		}
	}
	return l, nil
}

func (l *Loop) epoll() *poller { return l.park.(*poller) }

func (p *poller) run(turn func([]occurrence) outcome) {
	raw, err := p.file.SyscallConn()
	if err != nil {
		panic("loop: an open file without a descriptor: " + err.Error())
	}
	err = raw.Read(func(uintptr) bool {
		for {
			n := epollWait(p.fd, p.events)
			switch turn(p.resolve(p.events[:n])) {
			case end:
				return true
			case sleep:
				if n < len(p.events) {
					return false
				}
			}
		}
	})
	if err != nil {
		panic("loop: the runtime's poller does not take an epoll descriptor: " + err.Error())
	}
}

// resolve finds the connections that the events are for.
func (p *poller) resolve(events []unix.EpollEvent) []occurrence {
	found := p.found[:0]
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, e := range events {
		index, generation := e.Fd, e.Pad
		switch {
		case index <= firstListenerSlot:
			if a := p.acceptors[firstListenerSlot-index]; a != nil {
				found = append(found, occurrence{acceptor: a})
			}
		case index < 0:
		case p.table[index].generation == generation && p.table[index].conn != nil:
			found = append(found, occurrence{conn: p.table[index].conn, event: Event{
				Readable: e.Events&unix.EPOLLIN != 0,
				Writable: e.Events&unix.EPOLLOUT != 0,
				Ended:    e.Events&lasting != 0,
			}})
		}
	}
	return found
}

// watch requires the connection's mu. It gives it a place in the table.
func (p *poller) watch(c *Conn) error {
	p.mu.Lock()
	if len(p.free) == 0 {
		p.free = append(p.free, int32(len(p.table)))
		p.table = append(p.table, entry{})
	}
	index := p.free[len(p.free)-1]
	p.free = p.free[:len(p.free)-1]
	e := &p.table[index]
	e.generation = max(e.generation+1, 1)
	e.conn = c
	c.slot = slot{index, e.generation}
	p.mu.Unlock()
	if err := p.add(c.fd, changes, c.slot); err != nil {
		p.release(c)
		return err
	}
	return nil
}

// again requires the connection's mu. It has the kernel report how the connection is.
func (p *poller) again(c *Conn) error {
	return p.tell(unix.EPOLL_CTL_MOD, c.fd, changes, c.slot)
}

// forget requires the connection's mu. The poller watches it no longer.
func (p *poller) forget(c *Conn) {
	p.tell(unix.EPOLL_CTL_DEL, c.fd, 0, c.slot)
	p.release(c)
}

// release requires the connection's mu. Its place in the table is another's.
func (p *poller) release(c *Conn) {
	p.mu.Lock()
	p.table[c.slot.index].conn = nil
	p.free = append(p.free, c.slot.index)
	p.mu.Unlock()
	c.slot = slot{}
}

func (p *poller) watchables() []watchable {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := make([]watchable, 0, len(p.table)-len(p.free))
	for _, e := range p.table {
		if e.conn != nil {
			all = append(all, e.conn)
		}
	}
	return all
}

func (p *poller) add(fd int, events uint32, s slot) error {
	return p.tell(unix.EPOLL_CTL_ADD, fd, events, s)
}

// tell tells the kernel what to watch. After close it fails.
func (p *poller) tell(op, fd int, events uint32, s slot) error {
	p.control.RLock()
	defer p.control.RUnlock()
	if p.closed {
		return errEnded
	}
	return os.NewSyscallError("epoll_ctl", unix.EpollCtl(p.fd, op, fd, &unix.EpollEvent{Events: events, Fd: s.index, Pad: s.generation}))
}

var errEnded = errors.New("the event loop has ended")

// wake writes to the eventfd, which nobody reads: each write is a change.
func (p *poller) wake() {
	one := [8]byte{0: 1}
	write(p.waker, one[:])
}

// arm sets the timerfd, unless it comes early enough as it is set.
func (p *poller) arm(at time.Time) {
	now := time.Now()
	if p.armed.After(now) && !p.armed.After(at) {
		return
	}
	p.armed = at
	wait := unix.NsecToTimespec(max(int64(at.Sub(now)), 1))
	unix.TimerfdSettime(p.timer, 0, &unix.ItimerSpec{Value: wait}, nil)
}

func (p *poller) close() {
	p.control.Lock()
	defer p.control.Unlock()
	p.closed = true
	if p.file != nil {
		p.file.Close()
	} else {
		unix.Close(p.fd)
	}
	unix.Close(p.waker)
	unix.Close(p.timer)
}

package loop

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// What this package uses of io_uring(7); the numbers are the kernel's.
const (
	sysRingSetup = 425
	sysRingEnter = 426

	ringSubmitAll   = 1 << 7 // one entry that fails does not hold up the others; Linux 5.18
	ringCoopTaskrun = 1 << 8 // the thread is not interrupted for it; Linux 5.19
	ringGetEvents   = 1 << 0

	ringOffsetEntries = 0x10000000

	opSend = 26
	opRecv = 27
)

// notMade is the result of a call that the kernel has not taken from the ring.
const notMade = -1 << 31

// submission is struct io_uring_sqe, as far as sends and receives need it.
type submission struct {
	opcode, flags uint8
	_             uint16
	fd            int32
	_             uint64
	address       uint64
	length        uint32
	callFlags     uint32
	user          uint64
	_             [3]uint64
}

// completion is struct io_uring_cqe.
type completion struct {
	user   uint64
	result int32
	_      uint32
}

// ringParameters is struct io_uring_params.
type ringParameters struct {
	submissions, completions, flags, cpu, idle, features, queue uint32
	_                                                           [3]uint32
	submission                                                  struct {
		head, tail, mask, entries, flags, dropped, array, _ uint32
		_                                                   uint64
	}
	completion struct {
		head, tail, mask, entries, overflow, entriesAt, flags, _ uint32
		_                                                        uint64
	}
}

// ring makes many system calls by one: an io_uring of which nothing is under way
// between two calls of make. It reads and writes memory that is not the garbage
// collector's. It is for one goroutine.
type ring struct {
	fd                     int
	rings, entries         []byte // mapped
	submissions            []submission
	completions            []completion
	tail                   uint32 // of what is queued
	sent                   uint32 // of what the kernel has taken
	sharedTail             *uint32
	completed, completedTo *uint32
}

// openRing opens a ring for so many calls at once, a power of 2. It fails where
// the kernel has no io_uring that makes them, or allows none.
func openRing(calls uint32) (*ring, error) {
	p := ringParameters{flags: ringSubmitAll | ringCoopTaskrun}
	fd, _, errno := unix.Syscall(sysRingSetup, uintptr(calls), uintptr(unsafe.Pointer(&p)), 0)
	if errno != 0 {
		return nil, os.NewSyscallError("io_uring_setup", errno)
	}
	r := &ring{fd: int(fd)}
	const perSubmission, perCompletion = int(unsafe.Sizeof(submission{})), int(unsafe.Sizeof(completion{}))
	size := max(int(p.submission.array+p.submissions*4), int(p.completion.entriesAt)+int(p.completions)*perCompletion)
	var err error
	if r.rings, err = unix.Mmap(r.fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE); err == nil {
		r.entries, err = unix.Mmap(r.fd, ringOffsetEntries, int(p.submissions)*perSubmission, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE)
	}
	if err != nil {
		r.close()
		return nil, os.NewSyscallError("mmap of an io_uring", err)
	}
	at := func(offset uint32) unsafe.Pointer { return unsafe.Pointer(&r.rings[offset]) }
	r.submissions = unsafe.Slice((*submission)(unsafe.Pointer(&r.entries[0])), p.submissions)
	r.completions = unsafe.Slice((*completion)(at(p.completion.entriesAt)), p.completions)
	r.sharedTail = (*uint32)(at(p.submission.tail))
	r.completed, r.completedTo = (*uint32)(at(p.completion.head)), (*uint32)(at(p.completion.tail))
	order := unsafe.Slice((*uint32)(at(p.submission.array)), p.submissions)
	for i := range order {
		order[i] = uint32(i)
	}
	if err := r.prove(); err != nil {
		r.close()
		return nil, err
	}
	return r, nil
}

// prove sends and receives a byte: some sandboxes have a ring that makes no such calls.
func (r *ring) prove() error {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return os.NewSyscallError("socketpair", err)
	}
	defer unix.Close(pair[0])
	defer unix.Close(pair[1])
	memory, err := mapMemory(2)
	if err != nil {
		return err
	}
	defer unix.Munmap(memory)
	memory[0] = 'r'
	var results [2]int32
	r.add(opSend, pair[0], memory[:1], 0)
	r.add(opRecv, pair[1], memory[1:2], 1)
	if err := r.make(results[:]); err != nil {
		return err
	}
	if results != [2]int32{1, 1} || memory[1] != 'r' {
		return fmt.Errorf("a send and a receive by io_uring gave %d and %d, not 1 and 1", results[0], results[1])
	}
	return nil
}

// mapMemory returns memory that is not the garbage collector's, and that costs
// nothing until it is used.
func mapMemory(size int) ([]byte, error) {
	m, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	return m, os.NewSyscallError("mmap", err)
}

// add queues a send of p to a socket, or a receive into it, which does not wait.
// There must be room. p is mapped memory.
func (r *ring) add(op uint8, fd int, p []byte, result int) {
	r.submissions[r.tail&uint32(len(r.submissions)-1)] = submission{
		opcode: op, fd: int32(fd), address: uint64(uintptr(unsafe.Pointer(unsafe.SliceData(p)))), length: uint32(len(p)),
		callFlags: unix.MSG_DONTWAIT | unix.MSG_NOSIGNAL, user: uint64(result),
	}
	r.tail++
}

// make makes the queued calls, and puts what each has returned, or its negative
// error, in its place of results; notMade, if there is an error.
func (r *ring) make(results []int32) error {
	for i := range results {
		results[i] = notMade
	}
	atomic.StoreUint32(r.sharedTail, r.tail)
	from := r.sent
	var err error
	for r.sent != r.tail && err == nil {
		var n int
		n, err = r.enter(r.tail-r.sent, 0)
		r.sent += uint32(n)
	}
	if r.sent != r.tail { // the kernel looks at the tail when it is entered, and not before
		r.tail = r.sent
		atomic.StoreUint32(r.sharedTail, r.tail)
	}
	for wanted := r.sent - from; wanted > 0; {
		head, tail := *r.completed, atomic.LoadUint32(r.completedTo)
		if head == tail {
			if _, waited := r.enter(0, wanted); waited != nil {
				return errors.Join(err, waited)
			}
			continue
		}
		for ; head != tail; head++ {
			c := &r.completions[head&uint32(len(r.completions)-1)]
			results[c.user] = c.result
			wanted--
		}
		atomic.StoreUint32(r.completed, head)
	}
	return err
}

// enter is io_uring_enter(2), without telling the scheduler: no call of the ring's waits.
func (r *ring) enter(submit, wait uint32) (int, error) {
	var flags uintptr
	if wait > 0 {
		flags = ringGetEvents
	}
	for {
		n, _, errno := syscall.RawSyscall6(sysRingEnter, uintptr(r.fd), uintptr(submit), uintptr(wait), flags, 0, 0)
		switch {
		case errno == syscall.EINTR:
		case errno != 0:
			return 0, os.NewSyscallError("io_uring_enter", errno)
		case n == 0 && submit > 0:
			return 0, errors.New("io_uring_enter: the kernel takes no calls")
		default:
			return int(n), nil
		}
	}
}

func (r *ring) close() {
	for _, m := range [][]byte{r.rings, r.entries} {
		if m != nil {
			unix.Munmap(m)
		}
	}
	unix.Close(r.fd)
}

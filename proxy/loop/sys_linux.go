//go:build !race

package loop

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The system calls of the data path, on descriptors that do not block. They are
// made without telling the scheduler, which would look for work for the processor
// meanwhile. EINTR is not passed on.

func read(fd int, p []byte) (int, syscall.Errno) { return call(unix.SYS_READ, fd, p) }

// write sends without a signal where the peer is gone: it is one of the program's,
// which Go ignores on sockets.
func write(fd int, p []byte) (int, syscall.Errno) { return call(unix.SYS_WRITE, fd, p) }

func call(number uintptr, fd int, p []byte) (int, syscall.Errno) {
	for {
		n, _, errno := syscall.RawSyscall(number, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(len(p)))
		switch errno {
		case 0:
			return int(n), 0
		case syscall.EINTR:
		default:
			return 0, errno
		}
	}
}

func closeDescriptor(fd int) { syscall.RawSyscall(unix.SYS_CLOSE, uintptr(fd), 0, 0) }

// epollWait takes the events that are there.
func epollWait(epoll int, events []unix.EpollEvent) int {
	n, _, errno := syscall.RawSyscall6(unix.SYS_EPOLL_PWAIT, uintptr(epoll), uintptr(unsafe.Pointer(unsafe.SliceData(events))), uintptr(len(events)), 0, 0, 0)
	if errno != 0 {
		return 0
	}
	return int(n)
}

func accept4(fd int, name *unix.RawSockaddrAny) (int, syscall.Errno) {
	for {
		size := uint32(unix.SizeofSockaddrAny)
		n, _, errno := syscall.RawSyscall6(unix.SYS_ACCEPT4, uintptr(fd), uintptr(unsafe.Pointer(name)), uintptr(unsafe.Pointer(&size)), unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0, 0)
		switch errno {
		case 0:
			return int(n), 0
		case syscall.EINTR, syscall.ECONNABORTED: // the next one in the queue
		default:
			return -1, errno
		}
	}
}

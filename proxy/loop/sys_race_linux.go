//go:build race

package loop

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The race detector sees the memory that these calls read and write.

func read(fd int, p []byte) (int, syscall.Errno)  { return call(syscall.Read, fd, p) }
func write(fd int, p []byte) (int, syscall.Errno) { return call(syscall.Write, fd, p) }

func call(f func(int, []byte) (int, error), fd int, p []byte) (int, syscall.Errno) {
	for {
		n, err := f(fd, p)
		switch errno, _ := err.(syscall.Errno); {
		case err == nil:
			return n, 0
		case errno != syscall.EINTR:
			return 0, errno
		}
	}
}

func closeDescriptor(fd int) { syscall.Close(fd) }

func epollWait(epoll int, events []unix.EpollEvent) int {
	n, err := unix.EpollWait(epoll, events, 0)
	if err != nil {
		return 0
	}
	return n
}

func accept4(fd int, name *unix.RawSockaddrAny) (int, syscall.Errno) {
	for {
		size := uint32(unix.SizeofSockaddrAny)
		n, _, errno := syscall.Syscall6(unix.SYS_ACCEPT4, uintptr(fd), uintptr(unsafe.Pointer(name)), uintptr(unsafe.Pointer(&size)), unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0, 0)
		switch errno {
		case 0:
			return int(n), 0
		case syscall.EINTR, syscall.ECONNABORTED:
		default:
			return -1, errno
		}
	}
}

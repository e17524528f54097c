package service

import (
	"net"
	"syscall"
)

// queued reports whether a client waits to be accepted at a socket. One that is
// closed, or is none of the system's, has nobody.
func queued(socket net.Listener) (waits bool) {
	conn, ok := socket.(syscall.Conn)
	if !ok {
		return false
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		return false
	}
	// Without a descriptor to ask with nobody can tell.
	poller, err := syscall.EpollCreate1(syscall.EPOLL_CLOEXEC)
	if err != nil {
		return false
	}
	defer syscall.Close(poller)
	err = raw.Control(func(fd uintptr) {
		event := syscall.EpollEvent{Events: syscall.EPOLLIN}
		if syscall.EpollCtl(poller, syscall.EPOLL_CTL_ADD, int(fd), &event) != nil {
			return
		}
		n, err := syscall.EpollWait(poller, make([]syscall.EpollEvent, 1), 0)
		waits = err == nil && n > 0
	})
	return waits && err == nil
}

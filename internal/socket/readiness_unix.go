//go:build unix

package socket

import "syscall"

const readinessWorks = true

// readNow reads what is there; again means that nothing is.
func readNow(fd uintptr, p []byte) (n int, again bool, err error) {
	return now(syscall.Read, fd, p)
}

// writeNow writes what fits; again means that nothing does.
func writeNow(fd uintptr, p []byte) (n int, again bool, err error) {
	return now(syscall.Write, fd, p)
}

// now makes a system call that does not wait, once more for each signal that
// interrupts it.
func now(call func(fd int, p []byte) (int, error), fd uintptr, p []byte) (n int, again bool, err error) {
	for {
		n, err := call(int(fd), p)
		switch err {
		case nil:
			return n, false, nil
		case syscall.EINTR:
		case syscall.EAGAIN:
			return 0, true, nil
		default:
			return 0, false, err
		}
	}
}

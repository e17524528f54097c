//go:build linux || darwin

package terminal

import (
	"os"
	"os/signal"
	"syscall"
	"unsafe"
)

// Is reports whether a file is a terminal.
func Is(f *os.File) bool {
	var t syscall.Termios
	return control(f, getTermios, unsafe.Pointer(&t)) == nil
}

// Size is how many characters a terminal is wide and high; both are at least 1.
func Size(f *os.File) (wide, high int, err error) {
	var size struct{ rows, columns, x, y uint16 }
	if err := control(f, syscall.TIOCGWINSZ, unsafe.Pointer(&size)); err != nil {
		return 0, 0, err
	}
	if size.rows == 0 || size.columns == 0 {
		return 80, 24, nil // a line that says nothing of its size
	}
	return int(size.columns), int(size.rows), nil
}

// Keys has a terminal hand over each key as it is pressed, unseen and without a
// meaning of its own: Ctrl-C is the byte 3. restore puts back what was before.
func Keys(f *os.File) (restore func() error, err error) {
	var before syscall.Termios
	if err := control(f, getTermios, unsafe.Pointer(&before)); err != nil {
		return nil, err
	}
	t := before
	t.Lflag &^= syscall.ICANON | syscall.ECHO | syscall.ISIG | syscall.IEXTEN
	t.Iflag &^= syscall.IXON
	t.Cc[syscall.VMIN], t.Cc[syscall.VTIME] = 1, 0
	if err := control(f, setTermios, unsafe.Pointer(&t)); err != nil {
		return nil, err
	}
	return func() error { return control(f, setTermios, unsafe.Pointer(&before)) }, nil
}

// Resized is told when the size of the program's terminal changes, until stop.
func Resized() (changes <-chan os.Signal, stop func()) {
	ch := make(chan os.Signal, 1)
	signal.Notify(ch, syscall.SIGWINCH)
	return ch, func() { signal.Stop(ch) }
}

// control calls ioctl on a file that stays open for as long.
func control(f *os.File, request uintptr, arg unsafe.Pointer) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var errno syscall.Errno
	if err := raw.Control(func(fd uintptr) {
		_, _, errno = syscall.Syscall(syscall.SYS_IOCTL, fd, request, uintptr(arg))
	}); err != nil {
		return err
	}
	if errno == syscall.ENOTTY {
		return ErrNone
	}
	if errno != 0 {
		return errno
	}
	return nil
}

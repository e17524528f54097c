package hostport

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// socketMode lets the owner and the group of the process connect.
const socketMode = 0o660

// parseLocal reads the path of a unix socket.
func parseLocal(path string) (Bind, error) {
	if err := checkUnixPath(path); err != nil {
		return Bind{}, err
	}
	return Bind{text: unixPrefix + path, Path: path}, nil
}

// unixListener is a unix socket that takes its file away when it closes: the
// one that it made, and no other that has come into its place.
type unixListener struct {
	*net.UnixListener
	path    string
	made    fs.FileInfo
	closing sync.Once
}

// ListenUnix listens on a unix socket whose file has the mode, whatever the
// umask. A socket file that nobody listens on is taken away first; one in use,
// and whatever is no socket, is an error and stays. Closing the listener takes
// the file away. Where the system gives a socket its mode only after it listens
// (all but Linux), the mode of its folder guards the moment between. Its error
// is a *ListenError.
func ListenUnix(path string, mode fs.FileMode) (net.Listener, error) {
	if l := adopt(path); l != nil {
		return sockets.add(unixPrefix+path, l), nil
	}
	if err := removeStale(path); err != nil {
		return nil, err
	}
	// The mode is set before the file exists, where the system can, so that at no
	// moment more may connect than the mode says; a umask may still have narrowed it.
	config := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
		return raw.Control(func(fd uintptr) { syscall.Fchmod(int(fd), uint32(mode.Perm())) })
	}}
	ln, err := config.Listen(context.Background(), "unix", path)
	if err != nil {
		return nil, listenError(unixPrefix+path, err)
	}
	unix := ln.(*net.UnixListener)
	unix.SetUnlinkOnClose(false)
	l := &unixListener{UnixListener: unix, path: path}
	err = os.Chmod(path, mode.Perm())
	if err == nil {
		l.made, err = os.Lstat(path)
	}
	if err != nil {
		unix.Close()
		os.Remove(path)
		return nil, listenError(unixPrefix+path, err)
	}
	return sockets.add(unixPrefix+path, l), nil
}

// Close takes the file away and closes the socket, once.
func (l *unixListener) Close() error {
	err := net.ErrClosed
	l.closing.Do(func() {
		if info, statErr := os.Lstat(l.path); statErr == nil && os.SameFile(info, l.made) && !keepsFiles() {
			os.Remove(l.path)
		}
		err = l.UnixListener.Close()
	})
	return err
}

// removeStale takes away a socket file that nobody listens on. Anything else
// in its place is an error, and stays.
func removeStale(path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return listenError(unixPrefix+path, err)
	case info.Mode().Type() != fs.ModeSocket:
		return &ListenError{unixPrefix + path, errNoSocket}
	}
	conn, err := net.DialTimeout("unix", path, time.Second)
	if err == nil {
		conn.Close()
	}
	switch {
	case err == nil, !errors.Is(err, syscall.ECONNREFUSED) && !errors.Is(err, fs.ErrNotExist):
		// A full backlog, or no permission to ask, is no sign of an abandoned socket.
		return &ListenError{unixPrefix + path, syscall.EADDRINUSE}
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return listenError(unixPrefix+path, err)
	}
	return nil
}

// errNoSocket: something else stands at the path.
var errNoSocket = errors.New("a file that is no socket stands there; take it away, or choose another path")

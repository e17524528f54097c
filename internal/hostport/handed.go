package hostport

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/coreos/go-systemd/v22/activation"
)

// handedPrefix begins the name of a socket that the process was started with.
const handedPrefix = "fd:"

// parseHanded reads the name of a socket that is handed over.
func parseHanded(name string) (Bind, error) {
	// systemd.socket(5), FileDescriptorName=.
	if name == "" || len(name) > 255 || strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r > '~' || r == ':' }) {
		return Bind{}, fmt.Errorf("%q is no name of a handed-over socket; write FileDescriptorName= of the socket unit, as in fd:public", name)
	}
	return Bind{text: handedPrefix + name, Name: name}, nil
}

// handover holds the sockets that the process was started with, by name.
type handover struct {
	mu    sync.Mutex
	files map[string][]*os.File
	taken map[string]bool
}

// inherited is the process's own handover. Reading it takes the variables that
// announce it out of the environment, so that no child takes them for its own.
var inherited = sync.OnceValue(func() *handover { return newHandover(activation.Files(true)) })

func newHandover(files []*os.File) *handover {
	h := &handover{files: make(map[string][]*os.File), taken: make(map[string]bool)}
	for _, f := range files {
		h.files[f.Name()] = append(h.files[f.Name()], f)
	}
	return h
}

// listen returns the socket of the name, once.
func (h *handover) listen(name string) (net.Listener, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	files := h.files[name]
	switch {
	case h.taken[name]:
		return nil, errors.New("it was taken before: a socket that is handed over serves one listener for the life of the process; restart to have it again")
	case len(files) == 0 && len(h.files) == 0:
		return nil, errors.New("no socket was handed over; start the service by its socket unit (systemd: LISTEN_FDS)")
	case len(files) == 0:
		return nil, fmt.Errorf("no socket of this name was handed over; there are %s", strings.Join(slices.Sorted(maps.Keys(h.files)), ", "))
	case len(files) > 1:
		return nil, fmt.Errorf("%d sockets of this name were handed over, and a listener takes one; give each socket unit its own FileDescriptorName=", len(files))
	}
	if err := listens(files[0]); err != nil {
		return nil, err
	}
	ln, err := net.FileListener(files[0])
	if err != nil {
		return nil, fmt.Errorf("it is no socket to accept connections on: %w", err)
	}
	files[0].Close() // the listener has its own
	h.taken[name] = true
	return ln, nil
}

// listens says why a descriptor is no listening stream socket.
func listens(f *os.File) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return fmt.Errorf("it cannot be used: %w", err)
	}
	var kind, accepts int
	var fault error
	err = raw.Control(func(fd uintptr) {
		if kind, fault = syscall.GetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_TYPE); fault == nil {
			accepts, fault = syscall.GetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_ACCEPTCONN)
		}
	})
	switch {
	case err != nil || fault != nil:
		return fmt.Errorf("it is no socket: %w", errors.Join(err, fault))
	case kind != syscall.SOCK_STREAM:
		return errors.New("it is no stream socket; write ListenStream= in its socket unit")
	case accepts == 0:
		return errors.New("it does not listen; write Accept=no in its socket unit")
	}
	return nil
}

// unclaimed closes the sockets that nobody has listened on, and names them.
func (h *handover) unclaimed() (names []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for name, files := range h.files {
		if h.taken[name] {
			continue
		}
		names = append(names, name)
		h.taken[name] = true
		for _, f := range files {
			f.Close()
		}
	}
	slices.Sort(names)
	return names
}

// Unclaimed names the sockets that this process was started with and that no
// Listen has asked for, and closes them: clients should be refused there rather
// than wait. It is called once all that listen do.
func Unclaimed() []string { return inherited().unclaimed() }

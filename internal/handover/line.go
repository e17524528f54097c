package handover

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

const (
	// MaxBody is how long the body of a message may be.
	MaxBody = 64 << 10
	// maxFiles is how many descriptors a message may carry.
	maxFiles = 8
	// headBytes: the kind, the number of descriptors, the length of the body.
	headBytes = 6
)

// Line is a connection between two processes of one machine, on which they send
// each other messages and descriptors. Whoever does not close it says by its end that
// the process has ended. Send is safe for concurrent use; Receive is for one goroutine.
type Line struct {
	conn *net.UnixConn // static

	sending sync.Mutex // guards writes, so that messages are whole
}

// Message is what one process sends another. What its kinds mean is not the line's.
type Message struct {
	Kind  byte
	Body  []byte
	Files []*os.File // for the receiver to close
}

// Pair returns the two ends of a new line. The second is for another process.
func Pair() (*Line, *os.File, error) {
	ours, theirs, err := Ends()
	if err != nil {
		return nil, nil, err
	}
	line, err := LineOf(ours)
	if err != nil {
		theirs.Close()
		return nil, nil, err
	}
	return line, theirs, nil
}

// Ends returns the two ends of a new line, both for other processes.
func Ends() (one, other *os.File, err error) {
	fds, err := socketpair()
	if err != nil {
		return nil, nil, fmt.Errorf("a line to another process: %w", err)
	}
	return os.NewFile(uintptr(fds[0]), "line"), os.NewFile(uintptr(fds[1]), "line"), nil
}

// LineOf returns the line whose end a descriptor is, which it takes over.
func LineOf(f *os.File) (*Line, error) {
	conn, err := net.FileConn(f)
	f.Close()
	if err != nil {
		return nil, fmt.Errorf("a line to another process: %w", err)
	}
	unix, ok := conn.(*net.UnixConn)
	if !ok {
		conn.Close()
		return nil, errors.New("a line to another process: it is no unix socket")
	}
	return &Line{conn: unix}, nil
}

// Close ends the line at once, for both.
func (l *Line) Close() error { return l.conn.Close() }

// Send sends a message, and waits while the other process takes none. The descriptors
// stay the sender's too. After an error the line takes nothing any longer.
func (l *Line) Send(m Message) error {
	if len(m.Body) > MaxBody || len(m.Files) > maxFiles {
		return fmt.Errorf("a message of %d bytes and %d descriptors is too long", len(m.Body), len(m.Files))
	}
	buf := make([]byte, headBytes, headBytes+len(m.Body))
	buf[0], buf[1] = m.Kind, byte(len(m.Files))
	binary.BigEndian.PutUint32(buf[2:], uint32(len(m.Body)))
	buf = append(buf, m.Body...)
	rights, err := rightsOf(m.Files)
	if err != nil {
		return err
	}
	l.sending.Lock()
	defer l.sending.Unlock()
	n, _, err := l.conn.WriteMsgUnix(buf, rights, nil)
	if err == nil && n < len(buf) {
		_, err = l.conn.Write(buf[n:])
	}
	return err
}

// rightsOf returns the control message that carries descriptors. File.Fd would
// have the socket block, for the other process too.
func rightsOf(files []*os.File) ([]byte, error) {
	if len(files) == 0 {
		return nil, nil
	}
	fds := make([]int, len(files))
	for i, f := range files {
		raw, err := f.SyscallConn()
		if err == nil {
			err = raw.Control(func(fd uintptr) { fds[i] = int(fd) })
		}
		if err != nil {
			return nil, err
		}
	}
	return syscall.UnixRights(fds...), nil
}

// Receive waits for the next message. ErrEnded says that the other process has ended;
// after another error what comes is no message any longer.
func (l *Line) Receive() (m Message, err error) {
	defer func() {
		if err != nil {
			for _, f := range m.Files {
				f.Close()
			}
			m.Files = nil
			if ended(err) {
				err = ErrEnded
			}
		}
	}()
	var head [headBytes]byte
	for got := 0; got < headBytes; {
		// Descriptors come with the first byte of their message and never with another's.
		oob := make([]byte, syscall.CmsgSpace(4*maxFiles))
		n, oobn, flags, _, err := l.conn.ReadMsgUnix(head[got:], oob)
		if files, rightsErr := filesOf(oob[:oobn]); rightsErr == nil {
			m.Files = append(m.Files, files...)
		} else if err == nil {
			err = rightsErr
		}
		switch {
		case err == nil && n == 0:
			err = io.EOF
		case err == nil && flags&syscall.MSG_CTRUNC != 0:
			err = errors.New("descriptors were lost: the process has no room for them; raise its descriptor limit")
		}
		if err != nil {
			return m, err
		}
		got += n
	}
	m.Kind = head[0]
	size := binary.BigEndian.Uint32(head[2:])
	if size > MaxBody || int(head[1]) != len(m.Files) {
		return m, errors.New("the other process sends what is no message")
	}
	m.Body = make([]byte, size)
	_, err = io.ReadFull(l.conn, m.Body)
	return m, err
}

// filesOf returns the descriptors that a control message carries.
func filesOf(oob []byte) (files []*os.File, err error) {
	if len(oob) == 0 {
		return nil, nil
	}
	messages, err := syscall.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, err
	}
	for _, m := range messages {
		fds, err := syscall.ParseUnixRights(&m)
		if err != nil {
			continue
		}
		for _, fd := range fds {
			files = append(files, os.NewFile(uintptr(fd), "handed"))
		}
	}
	return files, nil
}

// SetReceiveDeadline bounds the wait of Receive; the zero time does not.
func (l *Line) SetReceiveDeadline(t time.Time) { l.conn.SetReadDeadline(t) }

// Ended waits until the other process has ended, and drops what it says until then.
func (l *Line) Ended() {
	var b [4096]byte
	for {
		n, oobn, _, _, err := l.conn.ReadMsgUnix(b[:], nil)
		if err == nil && n+oobn == 0 || ended(err) {
			return
		}
		if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			return // the line was closed here
		}
		if err != nil {
			l.conn.SetReadDeadline(time.Time{})
		}
	}
}

// ErrEnded says that the process at the other end of a line has ended.
var ErrEnded = errors.New("the other process has ended")

// ended reports whether an error is the end of the other process. One that ended
// with messages unread resets the line.
func ended(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET)
}

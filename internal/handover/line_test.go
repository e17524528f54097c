package handover

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"
)

func lines(t *testing.T) (a, b *Line) {
	t.Helper()
	a, theirs, err := Pair()
	if err != nil {
		t.Fatal(err)
	}
	if b, err = LineOf(theirs); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close(); b.Close() })
	return a, b
}

// Messages come whole and in order, with the descriptors of their own.
func TestMessages(t *testing.T) {
	a, b := lines(t)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	go func() {
		a.Send(Message{Kind: 1})
		a.Send(Message{Kind: 2, Body: bytes.Repeat([]byte("x"), MaxBody)})
		a.Send(Message{Kind: 3, Body: []byte("file"), Files: []*os.File{w}})
		a.Send(Message{Kind: 4, Files: []*os.File{w, w}})
		w.Close()
		a.Send(Message{Kind: 5})
		a.Close()
	}()
	for _, want := range []struct {
		kind        byte
		body, files int
	}{{1, 0, 0}, {2, MaxBody, 0}, {3, 4, 1}, {4, 0, 2}, {5, 0, 0}} {
		m, err := b.Receive()
		if err != nil || m.Kind != want.kind || len(m.Body) != want.body || len(m.Files) != want.files {
			t.Fatalf("%d, %d bytes, %d descriptors, %v; want %+v", m.Kind, len(m.Body), len(m.Files), err, want)
		}
		for _, f := range m.Files {
			if _, err := io.WriteString(f, "."); err != nil {
				t.Error(err)
			}
			f.Close()
		}
	}
	if _, err := b.Receive(); !errors.Is(err, ErrEnded) {
		t.Errorf("at the end: %v", err)
	}
	if text, err := io.ReadAll(r); string(text) != "..." || err != nil {
		t.Errorf("through the descriptors: %q, %v", text, err)
	}
}

// A descriptor that is sent does not block in this process for that: a listener that
// did would hold a thread.
func TestDescriptorsStayNonblocking(t *testing.T) {
	a, b := lines(t)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	f, err := ln.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Send(Message{Files: []*os.File{f}}); err != nil {
		t.Fatal(err)
	}
	f.Close()
	m, err := b.Receive()
	if err != nil {
		t.Fatal(err)
	}
	other, err := net.FileListener(m.Files[0])
	m.Files[0].Close()
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	for _, l := range []net.Listener{ln, other} {
		l.(*net.TCPListener).SetDeadline(time.Now())
		if _, err := l.Accept(); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%v", err)
		}
	}
}

func TestWhatIsNoMessage(t *testing.T) {
	for name, raw := range map[string][]byte{
		"too long":    binary.BigEndian.AppendUint32([]byte{1, 0}, MaxBody+1),
		"descriptors": binary.BigEndian.AppendUint32([]byte{1, 1}, 0),
	} {
		a, b := lines(t)
		if _, err := a.conn.Write(raw); err != nil {
			t.Fatal(err)
		}
		if _, err := b.Receive(); err == nil || errors.Is(err, ErrEnded) || !strings.Contains(err.Error(), "no message") {
			t.Errorf("%s: %v", name, err)
		}
		// The process lives, and its end is told all the same.
		ended := make(chan struct{})
		go func() { b.Ended(); close(ended) }()
		a.conn.Write(make([]byte, 10_000))
		select {
		case <-ended:
			t.Errorf("%s: a process that lives has ended", name)
		default:
		}
		a.Close()
		<-ended
	}
	a, b := lines(t)
	a.conn.Write([]byte{1, 0, 0})
	a.Close()
	if _, err := b.Receive(); !errors.Is(err, ErrEnded) {
		t.Errorf("half a head: %v", err)
	}
	if err := b.Send(Message{Body: make([]byte, MaxBody+1)}); err == nil {
		t.Error("a body that is too long is sent")
	}
}

func TestNoParent(t *testing.T) {
	t.Setenv(lineVar, "")
	if line, err := Parent(); line != nil || err != nil {
		t.Errorf("%v, %v", line, err)
	}
	t.Setenv(lineVar, "7")
	if _, err := Parent(); err == nil || !strings.Contains(err.Error(), lineVar) || os.Getenv(lineVar) != "" {
		t.Errorf("%v", err)
	}
}

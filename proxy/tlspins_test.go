package proxy

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"relayedge/internal/memconn"
)

// What the engines rely on of crypto/tls beyond its documentation, each with the
// reason. A version of Go that fails one of these tests needs the engines looked
// at, not the test.

// pinned is a server whose socket is in the test's hands: it reads what feed was
// given, and then answers errWouldBlock; what it writes is kept, write by write.
type pinned struct {
	net.Conn // nil: only what is below is called
	in       []byte
	end      error // after in; nil: errWouldBlock
	out      [][]byte
	failing  error // of writes
	tries    int   // writes while failing
	closed   int
}

func (p *pinned) Read(b []byte) (int, error) {
	if len(p.in) == 0 {
		if p.end != nil {
			return 0, p.end
		}
		return 0, errWouldBlock
	}
	n := copy(b, p.in)
	p.in = p.in[n:]
	return n, nil
}

func (p *pinned) Write(b []byte) (int, error) {
	if p.failing != nil {
		p.tries++
		return 0, p.failing
	}
	p.out = append(p.out, bytes.Clone(b))
	return len(b), nil
}

func (p *pinned) Close() error                     { p.closed++; return nil }
func (p *pinned) SetDeadline(time.Time) error      { return nil }
func (p *pinned) SetWriteDeadline(time.Time) error { return nil }

// switched is a connection that is a real one during the handshake, and pinned
// behind it.
type switched struct {
	net.Conn
	to *pinned
}

func (s *switched) Read(b []byte) (int, error) {
	if s.to != nil {
		return s.to.Read(b)
	}
	return s.Conn.Read(b)
}

func (s *switched) Write(b []byte) (int, error) {
	if s.to != nil {
		return s.to.Write(b)
	}
	return s.Conn.Write(b)
}

func (s *switched) Close() error {
	if s.to != nil {
		return s.to.Close()
	}
	return s.Conn.Close()
}

func pinConfig(t *testing.T) *tls.Config {
	return &tls.Config{GetCertificate: openCertificates(t).Certificate, MinVersion: tls.VersionTLS12}
}

// pinning is a server after its handshake with a client, of which shake does the
// other half.
func pinning(t *testing.T, shake func(own net.Conn)) (*tls.Conn, *pinned) {
	t.Helper()
	own, peer := memconn.Pipe(aliceAddr, edgeAddr)
	s := &switched{Conn: peer}
	server := tls.Server(s, pinConfig(t))
	done := make(chan error, 1)
	go func() { done <- server.Handshake() }()
	shake(own)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	s.to = new(pinned)
	return server, s.to
}

// pin13 is a server after its handshake in TLS 1.3, and its client.
func pin13(t *testing.T) (server *tls.Conn, socket *pinned, client *rekeyer) {
	t.Helper()
	server, socket = pinning(t, func(own net.Conn) { client = rekeying(t, own) })
	return server, socket, client
}

// A read that would block fails, and only that: whatever stands in the stream, cut
// at whatever byte, is whole when the rest has come. The loop reads when a socket
// is readable, and never waits in crypto/tls.
func TestPinReadsGoOnAfterWouldBlock(t *testing.T) {
	streams := map[string]func(r *rekeyer) [][]byte{ // records, whose data is "one" and "two"
		"data": func(r *rekeyer) [][]byte { return [][]byte{r.data("one"), r.data("two")} },
		"key updates": func(r *rekeyer) [][]byte {
			return [][]byte{r.data("one"), r.update(), r.update(), r.data("two")}
		},
		"a key update in two records": func(r *rekeyer) [][]byte {
			all := [][]byte{r.data("one"), r.record([]byte{24, 0}, 22), r.record([]byte{0, 1, 1}, 22)}
			r.renew()
			return append(all, r.data("two"))
		},
		"a warning": func(r *rekeyer) [][]byte {
			return [][]byte{r.data("one"), r.record([]byte{1, 90}, 21), r.data("two")} // user_canceled
		},
		"empty records": func(r *rekeyer) [][]byte {
			return [][]byte{r.data("one"), r.data(""), r.data(""), r.data("two")}
		},
	}
	for name, stream := range streams {
		t.Run("TLS 1.3 "+name, func(t *testing.T) {
			server, socket, r := pin13(t)
			whole := bytes.Join(append(stream(r), r.record([]byte{1, 0}, 21)), nil) // and close_notify
			feedByteByByte(t, server, socket, whole)
		})
	}
	again := map[string]func(s *sealer) [][]byte{
		"data": func(s *sealer) [][]byte { return [][]byte{s.record(23, []byte("one")), s.record(23, []byte("two"))} },
		"warnings": func(s *sealer) [][]byte {
			return [][]byte{s.record(23, []byte("one")), s.record(21, []byte{1, 90}), s.record(23, []byte("two"))}
		},
		"empty records": func(s *sealer) [][]byte {
			return [][]byte{s.record(23, []byte("one")), s.record(23, nil), s.record(23, []byte("two"))}
		},
	}
	for name, stream := range again {
		t.Run("TLS 1.2 "+name, func(t *testing.T) {
			server, socket, s := pin12(t)
			whole := bytes.Join(append(stream(s), s.record(21, []byte{1, 0})), nil)
			feedByteByByte(t, server, socket, whole)
		})
	}
}

// feedByteByByte has each byte come by itself, with a read that would block
// before it, and checks what comes out.
func feedByteByByte(t *testing.T, server *tls.Conn, socket *pinned, whole []byte) {
	t.Helper()
	var got []byte
	buf := make([]byte, 64)
	for i, b := range whole {
		for range 2 {
			n, err := server.Read(buf)
			got = append(got, buf[:n]...)
			if err != errWouldBlock {
				t.Fatalf("before byte %d of %d: %d bytes, %v", i, len(whole), n, err)
			}
		}
		socket.in = []byte{b}
		for len(socket.in) > 0 {
			n, err := server.Read(buf)
			got = append(got, buf[:n]...)
			if err != nil && err != errWouldBlock && err != io.EOF {
				t.Fatalf("at byte %d of %d: %d bytes, %v", i, len(whole), n, err)
			}
		}
	}
	if _, err := server.Read(buf); err != io.EOF || string(got) != "onetwo" {
		t.Errorf("read %q, and at the end %v", got, err)
	}
}

// pin12 is a server after its handshake in TLS 1.2, and its client's sending side.
func pin12(t *testing.T) (server *tls.Conn, socket *pinned, client *sealer) {
	t.Helper()
	server, socket = pinning(t, func(own net.Conn) { client = sealing(t, own) })
	return server, socket, client
}

// In TLS 1.2 a read that returns data looks at an alert that stands behind it, and
// returns that error together with the data: also when the alert is not all there.
func TestPinReadReturnsDataWithAnError(t *testing.T) {
	for _, tt := range []struct {
		cut  int // bytes of the close_notify that are missing
		want error
	}{{0, io.EOF}, {1, errWouldBlock}} {
		server, socket, s := pin12(t)
		whole := append(s.record(23, []byte("data")), s.record(21, []byte{1, 0})...)
		socket.in = whole[:len(whole)-tt.cut]
		buf := make([]byte, 64)
		if n, err := server.Read(buf); string(buf[:n]) != "data" || err != tt.want {
			t.Errorf("%d bytes missing: read %q, %v; want data and %v", tt.cut, buf[:n], err, tt.want)
		}
		socket.in = whole[len(whole)-tt.cut:]
		if n, err := server.Read(buf); n != 0 || err != io.EOF {
			t.Errorf("%d bytes missing, then: %d bytes, %v", tt.cut, n, err)
		}
	}
}

// Every other error of a read is kept for ever.
func TestPinReadErrorsAreKept(t *testing.T) {
	server, socket, r := pin13(t)
	fault := errors.New("a fault")
	socket.end = fault
	for range 2 {
		if n, err := server.Read(make([]byte, 1)); n != 0 || !errors.Is(err, fault) {
			t.Errorf("%d bytes, %v", n, err)
		}
		socket.end, socket.in = nil, r.data("x")
	}
}

// A FIN between records is io.EOF, as a close_notify is, and one inside a record
// io.ErrUnexpectedEOF: that is how the edge tells an end from a cut.
func TestPinFINs(t *testing.T) {
	for _, tt := range []struct {
		name string
		in   func(r *rekeyer) []byte
		want error
	}{
		{"between records", func(*rekeyer) []byte { return nil }, io.EOF},
		{"inside a head", func(r *rekeyer) []byte { return r.data("x")[:3] }, io.ErrUnexpectedEOF},
		{"inside a record", func(r *rekeyer) []byte { return r.data("x")[:9] }, io.ErrUnexpectedEOF},
		{"behind close_notify", func(r *rekeyer) []byte { return r.record([]byte{1, 0}, 21) }, io.EOF},
	} {
		server, socket, r := pin13(t)
		socket.in, socket.end = tt.in(r), io.EOF
		for range 2 {
			if n, err := server.Read(make([]byte, 8)); n != 0 || err != tt.want {
				t.Errorf("%s: %d bytes, %v; want %v", tt.name, n, err, tt.want)
			}
		}
	}
}

// An error of a write is kept for ever, and nothing more is written, whatever the
// error says of itself: so the sockets take every write whole, and bound what
// waits behind them.
func TestPinWriteErrorsAreKept(t *testing.T) {
	server, socket, _ := pin13(t)
	socket.failing = errWouldBlock
	if _, err := server.Write([]byte("x")); !errors.Is(err, errWouldBlock) {
		t.Fatal(err)
	}
	socket.failing = nil
	_, err := server.Write([]byte("y"))
	if temporary, ok := errors.AsType[interface {
		error
		Temporary() bool
	}](err); !ok || temporary.Temporary() || len(socket.out) != 0 {
		t.Errorf("the next write: %v, %d writes", err, len(socket.out))
	}
	if err := server.CloseWrite(); err != nil || len(socket.out) != 1 {
		t.Errorf("close_notify is tried all the same: %v, %d writes", err, len(socket.out))
	}
}

// The answer to a KeyUpdate is one write inside Read. One that fails does not fail
// the read that made it: the keys for reading are then those of before, and what
// follows cannot be read.
func TestPinKeyUpdateAnswers(t *testing.T) {
	server, socket, r := pin13(t)
	buf := make([]byte, 64)
	socket.in = append(r.update(), r.data("x")...)
	if n, err := server.Read(buf); string(buf[:n]) != "x" || err != nil || len(socket.out) != 1 {
		t.Errorf("read %q, %v, with %d writes; want x and one", buf[:n], err, len(socket.out))
	}
	socket.failing = errors.New("a fault")
	socket.in = r.update()
	if n, err := server.Read(buf); n != 0 || err != errWouldBlock || socket.tries != 1 {
		t.Errorf("with a write that fails: %d bytes, %v, %d writes", n, err, socket.tries)
	}
	socket.in = r.data("y")
	if n, err := server.Read(buf); n != 0 || err == nil || err == errWouldBlock {
		t.Errorf("behind it: %d bytes, %v", n, err)
	}
}

// Sixteen records in a row that bring nothing are borne, and one byte of data
// begins the count anew: the edge has no count of its own.
func TestPinUselessRecords(t *testing.T) {
	const most = 16
	buf := make([]byte, 64)
	for name, useless := range map[string]func(r *rekeyer) []byte{
		"key updates":   (*rekeyer).update,
		"empty records": func(r *rekeyer) []byte { return r.data("") },
		"warnings":      func(r *rekeyer) []byte { return r.record([]byte{1, 90}, 21) },
	} {
		server, socket, r := pin13(t)
		for range 3 {
			for range most {
				socket.in = append(socket.in, useless(r)...)
			}
			socket.in = append(socket.in, r.data("x")...)
			if n, err := server.Read(buf); string(buf[:n]) != "x" || err != nil {
				t.Fatalf("%s: %d bytes, %v behind %d of them", name, n, err, most)
			}
		}
		for range most {
			socket.in = append(socket.in, useless(r)...)
		}
		if _, err := server.Read(buf); err != errWouldBlock {
			t.Errorf("%s: %v behind %d of them", name, err, most)
		}
		socket.in = useless(r)
		if _, err := server.Read(buf); err == nil || err == errWouldBlock {
			t.Errorf("%s: %v at one more", name, err)
		}
	}
}

// CloseWrite writes one record, once, and leaves the socket open; reads go on. A
// Close behind it writes nothing more, and closes the socket once.
func TestPinCloseWrite(t *testing.T) {
	server, socket, r := pin13(t)
	for range 2 {
		if err := server.CloseWrite(); err != nil {
			t.Fatal(err)
		}
	}
	if len(socket.out) != 1 || socket.closed != 0 {
		t.Fatalf("%d writes, closed %d times", len(socket.out), socket.closed)
	}
	r.in.nonce() // that of the session ticket, which the handshake's client has left unread
	content, err := r.in.aead.Open(nil, r.in.nonce(), socket.out[0][5:], socket.out[0][:5])
	if err != nil || !bytes.Equal(content, []byte{1, 0, 21}) {
		t.Errorf("the record holds % x, %v; want close_notify", content, err)
	}
	socket.in = r.data("more")
	buf := make([]byte, 8)
	if n, err := server.Read(buf); string(buf[:n]) != "more" || err != nil {
		t.Errorf("read %q, %v", buf[:n], err)
	}
	if _, err := server.Write([]byte("x")); err == nil || len(socket.out) != 1 {
		t.Errorf("a write behind close_notify: %v", err)
	}
	if err := server.Close(); err != nil || len(socket.out) != 1 || socket.closed != 1 {
		t.Errorf("Close: %v, %d writes, closed %d times", err, len(socket.out), socket.closed)
	}
}

// A Close without CloseWrite says close_notify first.
func TestPinCloseSaysGoodbye(t *testing.T) {
	server, socket, _ := pin13(t)
	if err := server.Close(); err != nil || len(socket.out) != 1 || socket.closed != 1 {
		t.Errorf("%v, %d writes, closed %d times", err, len(socket.out), socket.closed)
	}
}

// All of the server's TLS 1.3 flight, session ticket included, is one write, before
// the client's Finished has come; behind that Handshake writes nothing. Where a
// client certificate is asked for, the ticket is a write of its own, still inside
// Handshake. In TLS 1.2 the ticket stands in the last flight.
func TestPinTicketsLeaveInsideHandshake(t *testing.T) {
	for _, tt := range []struct {
		name   string
		auth   tls.ClientAuthType
		most   uint16
		writes []string // what the records of each are: plain ones by type, sealed ones as "sealed"
	}{
		{"TLS 1.3", tls.NoClientCert, tls.VersionTLS13, []string{"handshake, change, sealed x5"}},
		{"TLS 1.3 with client certificates", tls.RequestClientCert, tls.VersionTLS13, []string{"handshake, change, sealed x5", "sealed"}},
		{"TLS 1.2", tls.NoClientCert, tls.VersionTLS12, []string{"handshake x4", "handshake, change, handshake"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			own, peer := memconn.Pipe(aliceAddr, edgeAddr)
			log := &writeLog{Conn: peer}
			cfg := pinConfig(t)
			cfg.ClientAuth = tt.auth
			server := tls.Server(log, cfg)
			done := make(chan error, 1)
			go func() { done <- server.Handshake() }()
			client := clientTLS("relay.example.org")
			client.MaxVersion = tt.most
			client.ClientSessionCache = oneSession{new(*tls.ClientSessionState)} // in TLS 1.2 only who asks gets a ticket
			conn := tls.Client(own, client)
			if err := conn.Handshake(); err != nil {
				t.Fatal(err)
			}
			go io.Copy(io.Discard, conn) // a ticket that comes late
			if err := <-done; err != nil {
				t.Fatal(err)
			}
			if got := log.describe(); strings.Join(got, "; ") != strings.Join(tt.writes, "; ") {
				t.Errorf("the writes are %q, want %q", got, tt.writes)
			}
			// From here on it is done: nothing is read or written, and what it told stays.
			n := len(log.wrote)
			if err := server.Handshake(); err != nil || len(log.wrote) != n {
				t.Errorf("a second Handshake: %v, %d writes more", err, len(log.wrote)-n)
			}
			state := server.ConnectionState()
			binding, err := state.ExportKeyingMaterial("EXPORTER-Channel-Binding", nil, 32)
			if !state.HandshakeComplete || err != nil || len(binding) != 32 {
				t.Errorf("complete: %v, exporter: %d bytes, %v", state.HandshakeComplete, len(binding), err)
			}
			own.Close()
		})
	}
}

// writeLog keeps what is written, write by write.
type writeLog struct {
	net.Conn
	wrote [][]byte
}

func (l *writeLog) Write(p []byte) (int, error) {
	l.wrote = append(l.wrote, bytes.Clone(p))
	return l.Conn.Write(p)
}

// describe names the records of each write.
func (l *writeLog) describe() (all []string) {
	for _, p := range l.wrote {
		var kinds []string
		for len(p) >= 5 {
			name := map[byte]string{20: "change", 21: "alert", 22: "handshake", 23: "sealed"}[p[0]]
			if last := len(kinds) - 1; last >= 0 && strings.HasPrefix(kinds[last], name) {
				var n int
				if _, err := fmt.Sscanf(kinds[last], name+" x%d", &n); err != nil {
					n = 1
				}
				kinds[last] = fmt.Sprintf("%s x%d", name, n+1)
			} else {
				kinds = append(kinds, name)
			}
			p = p[5+int(p[3])<<8+int(p[4]):]
		}
		all = append(all, strings.Join(kinds, ", "))
	}
	return all
}

// A client that negotiates anew in TLS 1.2 is answered by the alert
// unexpected_message, and the connection is over: that is all that refuses it.
func TestPinRenegotiation(t *testing.T) {
	server, socket, s := pin12(t)
	socket.in = s.record(22, hello(t, "relay.example.org")[5:])
	if n, err := server.Read(make([]byte, 8)); n != 0 || err == nil || err == io.EOF {
		t.Errorf("%d bytes, %v", n, err)
	}
	if len(socket.out) != 1 || socket.out[0][0] != 21 {
		t.Errorf("%d records were written, want an alert", len(socket.out))
	}
	if _, err := server.Write([]byte("x")); err == nil || !strings.Contains(err.Error(), "unexpected message") {
		t.Errorf("a write behind it: %v", err)
	}
}

// Each record is a write of its own: the loop gathers them. Small ones come first,
// up to 128 KiB, unless that is switched off.
func TestPinRecordsOfOneWrite(t *testing.T) {
	server, socket, _ := pin13(t)
	if n, err := server.Write(nil); n != 0 || err != nil || len(socket.out) != 0 {
		t.Errorf("of nothing: %d, %v, %d writes", n, err, len(socket.out))
	}
	p := make([]byte, 64<<10)
	var counts []int
	for range 4 {
		before := len(socket.out)
		if n, err := server.Write(p); n != len(p) || err != nil {
			t.Fatal(n, err)
		}
		counts = append(counts, len(socket.out)-before)
	}
	for i, record := range socket.out {
		if record[0] != 23 || 5+int(record[3])<<8+int(record[4]) != len(record) {
			t.Errorf("write %d is no record by itself", i)
		}
	}
	if got := fmt.Sprint(counts); got != "[11 5 4 4]" {
		t.Errorf("64 KiB are %s records, want [11 5 4 4]", got)
	}
}

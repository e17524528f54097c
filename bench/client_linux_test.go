package bench

import (
	"bufio"
	"bytes"
	"crypto/ed25519"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"relayedge/internal/proxyheader"
	"relayedge/relaycore/wire"
)

// steadySize is the payload of a message of the steady size.
const steadySize = 1226

// wireSize is such a message on a TLS stream.
const wireSize = 1299

const (
	opBinary = 2
	opPing   = 9
	opPong   = 10
)

// client is one WebSocket client. Until listen runs, whoever has it reads; from
// then on it answers pings and tells what comes to got.
type client struct {
	conn    net.Conn
	in      *bufio.Reader
	raw     *counted // below TLS; nil without
	binding [32]byte
	circuit uint64

	got atomic.Pointer[func(op byte, payload []byte)]
	err atomic.Pointer[error] // why it ended

	frame []byte // its message, once made

	mu sync.Mutex // one writer at a time
}

// counted counts what is written.
type counted struct {
	net.Conn
	written atomic.Int64
}

func (c *counted) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.written.Add(int64(n))
	return n, err
}

// target is where clients connect, and how.
type target struct {
	network, address string
	path             func(i int) string
	proxied          bool // each with a PROXY header and an address of its own
	tls              bool // each from an address of its own, over TLS
}

// connect connects the client of number i and upgrades.
func (to target) connect(i int) (*client, error) {
	d := net.Dialer{Timeout: patience}
	if to.tls {
		d.LocalAddr = &net.TCPAddr{IP: net.IPv4(127, 10, byte(i/250), byte(1+i%250))}
	}
	conn, err := d.Dial(to.network, to.address)
	if err != nil {
		return nil, err
	}
	conn.SetDeadline(time.Now().Add(patience))
	c := &client{conn: conn}
	if err := c.open(to, i); err != nil {
		conn.Close()
		return nil, err
	}
	conn.SetDeadline(time.Time{})
	return c, nil
}

func (c *client) open(to target, i int) error {
	var first []byte
	switch {
	case to.proxied:
		binary.BigEndian.PutUint64(c.binding[:], uint64(i))
		header, err := proxyheader.AppendV2(nil, proxyheader.Header{
			Version:     2,
			Source:      netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1, byte(i / 250), byte(1 + i%250)}), 40000),
			Destination: netip.MustParseAddrPort("192.0.2.1:443"),
			TLVs:        []proxyheader.TLV{{Type: 228, Value: c.binding[:]}},
		}, true)
		if err != nil {
			return err
		}
		first = header
	case to.tls:
		c.raw = &counted{Conn: c.conn}
		secure := tls.Client(c.raw, &tls.Config{InsecureSkipVerify: true, ServerName: "localhost", MinVersion: tls.VersionTLS13})
		if err := secure.Handshake(); err != nil {
			return err
		}
		state := secure.ConnectionState()
		key, err := state.ExportKeyingMaterial("EXPORTER-Channel-Binding", nil, 32)
		if err != nil {
			return err
		}
		c.binding = [32]byte(key)
		c.conn = secure
	}
	c.in = bufio.NewReaderSize(c.conn, 2<<10)
	request := fmt.Appendf(first, "GET %s HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"+
		"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n", to.path(i))
	if _, err := c.conn.Write(request); err != nil {
		return err
	}
	for n := 0; ; n++ {
		line, err := c.in.ReadSlice('\n')
		switch {
		case err != nil:
			return err
		case n == 0 && !bytes.HasPrefix(line, []byte("HTTP/1.1 101 ")):
			return fmt.Errorf("no upgrade but %q", line)
		case len(line) == 2:
			return nil
		}
	}
}

// masked is a frame of a client.
func masked(op byte, payload []byte) []byte {
	b := []byte{0x80 | op}
	if len(payload) < 126 {
		b = append(b, 0x80|byte(len(payload)))
	} else {
		b = binary.BigEndian.AppendUint16(append(b, 0x80|126), uint16(len(payload)))
	}
	key := [4]byte{1, 2, 3, 4}
	b = append(b, key[:]...)
	at := len(b)
	b = append(b, payload...)
	for i := range b[at:] {
		b[at+i] ^= key[i&3]
	}
	return b
}

func (c *client) write(b []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, err := c.conn.Write(b)
	return err
}

// next reads a frame and answers pings. What it returns is valid until the next call.
func (c *client) next() (op byte, payload []byte, err error) {
	for {
		head, err := c.in.Peek(2)
		if err != nil {
			return 0, nil, err
		}
		op, size, length := head[0]&15, 2, int(head[1])
		if length == 126 {
			if head, err = c.in.Peek(4); err != nil {
				return 0, nil, err
			}
			size, length = 4, int(binary.BigEndian.Uint16(head[2:]))
		}
		b, err := c.in.Peek(size + length)
		if err != nil {
			return 0, nil, err
		}
		c.in.Discard(len(b))
		if op != opPing {
			return op, b[size:], nil
		}
		if err := c.write(masked(opPong, b[size:])); err != nil {
			return 0, nil, err
		}
	}
}

// expect reads the next message, which has to be an F.
func expect[F wire.Frame](c *client) (f F, err error) {
	_, b, err := c.next()
	if err != nil {
		return f, err
	}
	frame, err := wire.DecodeServer(b)
	if err != nil {
		return f, err
	}
	f, ok := frame.(F)
	if !ok {
		return f, fmt.Errorf("the relay sent %v", frame.Type())
	}
	return f, nil
}

// identify publishes the identity of number i.
func (c *client) identify(i int) error {
	seed := make([]byte, ed25519.SeedSize)
	binary.BigEndian.PutUint64(seed, uint64(i))
	if err := c.write(masked(opBinary, wire.Hello{Version: wire.Version}.Append(nil))); err != nil {
		return err
	}
	welcome, err := expect[wire.Welcome](c)
	if err != nil {
		return err
	}
	publish := wire.NewPublish(ed25519.NewKeyFromSeed(seed), []byte("bundle"), welcome.Nonce, c.binding)
	if err := c.write(masked(opBinary, publish.Append(nil))); err != nil {
		return err
	}
	_, err = expect[wire.Published](c)
	return err
}

// pair opens a circuit between two clients.
func pair(a, b *client, number int) error {
	ask := wire.Ask{Mode: wire.Blinded, Content: make([]byte, wire.AskSize)}
	binary.BigEndian.PutUint64(ask.Key[:], uint64(number)+1)
	frame := masked(opBinary, ask.Append(nil))
	for _, c := range []*client{a, b} {
		if err := c.write(frame); err != nil {
			return err
		}
		// The relay takes them one after the other, also from two connections.
		if c == a {
			if err := a.write(masked(opPing, nil)); err != nil {
				return err
			}
			if op, _, err := a.next(); err != nil || op != opPong {
				return errors.Join(err, fmt.Errorf("opcode %d instead of a pong", op))
			}
		}
	}
	for _, c := range []*client{a, b} {
		opened, err := expect[wire.CircuitOpen](c)
		if err != nil {
			return err
		}
		c.circuit = opened.Circuit
	}
	return nil
}

// message is a SEND of the steady size on the client's circuit, as a frame.
func (c *client) message() []byte {
	return masked(opBinary, wire.Send{Circuit: c.circuit, Payload: make([]byte, steadySize)}.Append(nil))
}

// listen reads until the end.
func (c *client) listen() {
	for {
		op, payload, err := c.next()
		if err != nil {
			c.err.Store(&err)
			return
		}
		if got := c.got.Load(); got != nil {
			(*got)(op, payload)
		}
	}
}

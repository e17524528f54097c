package clienthello

import (
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
)

// helloOf is the first record of a crypto/tls client.
func helloOf(t testing.TB, cfg *tls.Config) []byte {
	t.Helper()
	own, peer := net.Pipe()
	defer peer.Close()
	cfg.InsecureSkipVerify = true
	go func() {
		tls.Client(own, cfg).Handshake()
		own.Close()
	}()
	head := make([]byte, recordHead)
	if _, err := io.ReadFull(peer, head); err != nil {
		t.Fatal(err)
	}
	body := make([]byte, binary.BigEndian.Uint16(head[3:]))
	if _, err := io.ReadFull(peer, body); err != nil {
		t.Fatal(err)
	}
	return append(head, body...)
}

// padded makes a record's hello longer by an extension of padding (RFC 7685),
// and returns the message alone.
func padded(record []byte, n int) []byte {
	message := bytes.Clone(record[recordHead:])
	at := messageHead + 2 + 32
	at += 1 + int(message[at])
	at += 2 + int(binary.BigEndian.Uint16(message[at:]))
	at += 1 + int(message[at])
	extensions := int(binary.BigEndian.Uint16(message[at:])) + 4 + n
	binary.BigEndian.PutUint16(message[at:], uint16(extensions))
	message = append(message, 0, 21, byte(n>>8), byte(n))
	message = append(message, make([]byte, n)...)
	body := len(message) - messageHead
	message[1], message[2], message[3] = byte(body>>16), byte(body>>8), byte(body)
	return message
}

// records cuts a message into records of size bytes.
func records(message []byte, size int) (wire []byte) {
	for part := range slices.Chunk(message, size) {
		wire = append(wire, typeHandshake, 3, 1, byte(len(part)>>8), byte(len(part)))
		wire = append(wire, part...)
	}
	return wire
}

var clients = map[string]*tls.Config{
	"hybrid key exchange":    {ServerName: "relay.example.org", NextProtos: []string{"h2", "http/1.1"}, CurvePreferences: []tls.CurveID{tls.X25519MLKEM768, tls.X25519}},
	"TLS 1.2":                {ServerName: "irc.example.org", MaxVersion: tls.VersionTLS12},
	"classic":                {ServerName: "RELAY.Example.ORG", NextProtos: []string{"mqtt"}, CurvePreferences: []tls.CurveID{tls.X25519}},
	"no name":                {},
	"an address for a name":  {ServerName: "192.0.2.1"},
	"a long name":            {ServerName: strings.Repeat("a.", 120) + "example.org"},
	"encrypted client hello": {ServerName: "relay.example.org", MinVersion: tls.VersionTLS13},
}

// A hello says the same in whatever segments and records it comes, at whatever
// length, and every byte is kept.
func TestHelloInAnyPieces(t *testing.T) {
	for name, cfg := range clients {
		record := helloOf(t, cfg)
		want := Hello{ServerName: cfg.ServerName, Protocols: cfg.NextProtos}
		if strings.Contains(name, "address") {
			want.ServerName = "" // crypto/tls sends none
		}
		for _, padding := range []int{0, 15 << 10, 60 << 10} {
			message := padded(record, padding)
			for _, size := range []int{1, 2, 5, 100, maxRecord} {
				wire := records(message, size)
				for _, segment := range []int{1, 7, 1400, len(wire)} {
					if padding > 0 && size == 1 && segment == 1 && testing.Short() {
						continue
					}
					wire := append(wire, "early data"...)
					var r Reader
					ends := 0
					for part := range slices.Chunk(wire, segment) {
						done, err := r.Add(part)
						if err != nil {
							t.Fatalf("%s, %d bytes in records of %d, segments of %d: %v", name, len(message), size, segment, err)
						}
						if done && ends == 0 {
							ends = len(r.Bytes())
						}
					}
					whole := len(wire) - len("early data")
					if ends < whole || ends >= whole+segment {
						t.Fatalf("%s: whole after %d of %d bytes", name, ends, whole)
					}
					if got := r.Hello(); got.ServerName != want.ServerName || !slices.Equal(got.Protocols, want.Protocols) {
						t.Fatalf("%s: %+v, want %+v", name, got, want)
					}
					if !bytes.Equal(r.Bytes(), wire) {
						t.Fatalf("%s: the bytes have changed", name)
					}
				}
			}
		}
	}
}

// A hello is whole at its very last byte and not before, wherever it is cut in two.
func TestNothingIsDecidedOnAPrefix(t *testing.T) {
	record := helloOf(t, clients["hybrid key exchange"])
	for cut := 1; cut < len(record); cut++ {
		var r Reader
		if done, err := r.Add(record[:cut]); done || err != nil {
			t.Fatalf("after %d of %d bytes: %v, %v", cut, len(record), done, err)
		}
		if done, err := r.Add(record[cut:]); !done || err != nil {
			t.Fatalf("cut at %d: %v, %v", cut, done, err)
		}
	}
}

// extension, vector8 and vector16 build hellos that no client would send.
func extension(kind uint16, data []byte) []byte {
	return append(binary.BigEndian.AppendUint16(nil, kind), vector16(data)...)
}
func vector8(p []byte) []byte { return append([]byte{byte(len(p))}, p...) }
func vector16(p []byte) []byte {
	return append(binary.BigEndian.AppendUint16(nil, uint16(len(p))), p...)
}

func hostName(kind byte, name string) []byte { return append([]byte{kind}, vector16([]byte(name))...) }

// body is a ClientHello's, with these extensions.
func body(extensions ...[]byte) []byte {
	b := append([]byte{3, 3}, make([]byte, 32)...)
	b = append(b, vector8(nil)...)
	b = append(b, vector16([]byte{0x13, 1})...)
	b = append(b, vector8([]byte{0})...)
	return append(b, vector16(bytes.Join(extensions, nil))...)
}

func message(body []byte) []byte {
	n := len(body)
	return append([]byte{typeClientHello, byte(n >> 16), byte(n >> 8), byte(n)}, body...)
}

func TestRefused(t *testing.T) {
	sni := func(p ...[]byte) []byte { return extension(0, vector16(bytes.Join(p, nil))) }
	alpn := func(p ...[]byte) []byte { return extension(16, vector16(bytes.Join(p, nil))) }
	hello := func(extensions ...[]byte) []byte { return records(message(body(extensions...)), maxRecord) }
	good := body(sni(hostName(0, "a.example")))
	many := make([][]byte, 0, 10000)
	for i := range 10000 {
		many = append(many, extension(uint16(1000+i), nil))
	}
	for _, tt := range []struct {
		name string
		wire []byte
		want error
	}{
		{"good", hello(sni(hostName(0, "a.example"))), nil},
		{"no extensions at all", records(message(good[:2+32+1+4+2]), maxRecord), nil},
		{"unknown extensions", hello(extension(0xfafa, []byte("x")), extension(63, nil), extension(64, nil)), nil},
		{"ten thousand extensions", hello(many...), nil},
		{"a name of another type", hello(sni(hostName(7, "x"), hostName(0, "a.example"))), nil},
		{"the longest", records(message(append(good[:len(good):len(good)], make([]byte, MaxMessage-len(good))...)), maxRecord), ErrMalformed},
		{"one more than the longest", []byte{22, 3, 1, 0, 4, 1, 1, 0, 1}, ErrTooLong},
		{"the largest announcement", []byte{22, 3, 1, 0, 4, 1, 255, 255, 255}, ErrTooLong},
		{"HTTP", []byte("GET / HTTP/1.1\r\n"), ErrNotTLS},
		{"SSLv2", []byte{0x80, 0x2e, 1, 0, 2}, ErrNotTLS},
		{"zeros", make([]byte, 64), ErrNotTLS},
		{"a handshake record of another protocol", []byte{22, 254, 253, 0, 10}, ErrNotTLS},
		{"an alert", []byte{21, 3, 1, 0, 2, 1, 0}, ErrMalformed},
		{"application data", []byte{23, 3, 3, 0, 2, 1, 0}, ErrNotTLS},
		{"an empty record", []byte{22, 3, 1, 0, 0}, ErrMalformed},
		{"a record that is too long", []byte{22, 3, 1, 0x40, 1}, ErrMalformed},
		{"another message", []byte{22, 3, 1, 0, 4, 2, 0, 0, 4}, ErrMalformed},
		{"another record in between", append(records(message(good)[:20], 20), 23, 3, 3, 0, 1, 0), ErrMalformed},
		{"another protocol in between", append(records(message(good)[:20], 20), 22, 2, 3, 0, 1, 0), ErrMalformed},
		{"an empty hello", records(message(nil), maxRecord), ErrMalformed},
		{"bytes behind the extensions", records(message(append(slices.Clone(good), 0)), maxRecord), ErrMalformed},
		{"extensions beyond the end", records(message(good[:len(good)-1]), maxRecord), ErrMalformed},
		{"an extension twice", hello(extension(70, nil), extension(70, nil)), ErrMalformed},
		{"an everyday extension twice", hello(sni(hostName(0, "a")), sni(hostName(0, "a"))), ErrMalformed},
		{"two host names", hello(sni(hostName(0, "a"), hostName(0, "b"))), ErrMalformed},
		{"an empty host name", hello(sni(hostName(0, ""))), ErrMalformed},
		{"no names", hello(sni()), ErrMalformed},
		{"bytes behind the names", hello(extension(0, append(vector16(hostName(0, "a")), 0))), ErrMalformed},
		{"an empty server name extension", hello(extension(0, nil)), ErrMalformed},
		{"no protocols", hello(alpn()), ErrMalformed},
		{"an empty protocol", hello(alpn(vector8(nil))), ErrMalformed},
		{"a protocol beyond the end", hello(alpn([]byte{9, 'h'})), ErrMalformed},
		{"no cipher suites", records(message(append(append(make([]byte, 34), 0), 0, 0, 1, 0)), maxRecord), ErrMalformed},
		{"half a cipher suite", records(message(append(append(make([]byte, 34), 0), 0, 1, 0, 1, 0)), maxRecord), ErrMalformed},
		{"no compression method", records(message(append(append(make([]byte, 34), 0), 0, 2, 0, 1, 0)), maxRecord), ErrMalformed},
		{"a session id of 33 bytes", records(message(append(append(make([]byte, 34), 33), make([]byte, 40)...)), maxRecord), ErrMalformed},
	} {
		var whole, pieces Reader
		done, err := whole.Add(tt.wire)
		if !errors.Is(err, tt.want) || done != (tt.want == nil) {
			t.Errorf("%s: %v, %v; want %v", tt.name, done, err, tt.want)
		}
		for _, b := range tt.wire {
			done, err = pieces.Add([]byte{b})
		}
		if !errors.Is(err, tt.want) || done != (tt.want == nil) {
			t.Errorf("%s, byte by byte: %v, %v; want %v", tt.name, done, err, tt.want)
		}
	}
}

// The most that one hello can make a Reader hold is what MaxWire says.
func TestMostBytes(t *testing.T) {
	long := message(body(extension(21, make([]byte, MaxMessage-len(body())-4))))
	if len(long) != messageHead+MaxMessage {
		t.Fatalf("a message of %d bytes", len(long))
	}
	wire := records(long, 1)
	var r Reader
	if done, err := r.Add(wire); !done || err != nil || len(wire) != MaxWire {
		t.Errorf("%d bytes, want %d: %v, %v", len(wire), MaxWire, done, err)
	}
}

// stopAtHello is a server that only listens to the hello.
var errHeard = errors.New("heard")

// oracle is what crypto/tls makes of the bytes; heard is false if it comes to no hello.
func oracle(wire []byte) (hello Hello, heard bool) {
	server := tls.Server(&oneWay{Reader: bytes.NewReader(wire)}, &tls.Config{
		GetConfigForClient: func(info *tls.ClientHelloInfo) (*tls.Config, error) {
			hello, heard = Hello{info.ServerName, info.SupportedProtos}, true
			return nil, errHeard
		},
	})
	server.Handshake()
	return hello, heard
}

// oneWay is a connection that plays back bytes and swallows answers.
type oneWay struct {
	net.Conn
	io.Reader
}

func (o *oneWay) Read(p []byte) (int, error)  { return o.Reader.Read(p) }
func (o *oneWay) Write(p []byte) (int, error) { return len(p), nil }
func (o *oneWay) Close() error                { return nil }

// Whatever crypto/tls takes for a hello, we do, and read the same from it; in
// pieces we come to the same as at once.
func FuzzReader(f *testing.F) {
	for _, cfg := range clients {
		record := helloOf(f, cfg)
		f.Add(record, uint8(1))
		f.Add(records(record[recordHead:], 100), uint8(33))
	}
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"), uint8(3))
	f.Add(records(message(body(extension(0, vector16(hostName(0, "a.example."))))), 7), uint8(2))
	f.Fuzz(func(t *testing.T, wire []byte, step uint8) {
		var whole, pieces Reader
		done, err := whole.Add(wire)
		var doneInPieces bool
		var errInPieces error
		for part := range slices.Chunk(wire, int(step)+1) {
			doneInPieces, errInPieces = pieces.Add(part)
		}
		if done != doneInPieces || err != errInPieces || fmt.Sprint(whole.Hello()) != fmt.Sprint(pieces.Hello()) {
			t.Fatalf("at once %v, %v, %q; in pieces %v, %v, %q", done, err, whole.Hello(), doneInPieces, errInPieces, pieces.Hello())
		}
		if done && err != nil || !bytes.Equal(whole.Bytes(), wire) || !bytes.Equal(pieces.Bytes(), wire) {
			t.Fatalf("%v, %v, and %d of %d bytes", done, err, len(whole.Bytes()), len(wire))
		}
		if hello, heard := oracle(wire); heard {
			if !done || hello.ServerName != whole.Hello().ServerName || !slices.Equal(hello.Protocols, whole.Hello().Protocols) {
				t.Fatalf("crypto/tls reads %q, we read %q, %v, %v", hello, whole.Hello(), done, err)
			}
		}
	})
}

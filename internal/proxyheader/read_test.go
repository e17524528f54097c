package proxyheader

import (
	"bytes"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
)

// chunks is a reader that gives its chunks one a read, and then err.
type chunks struct {
	chunks [][]byte
	err    error
	asked  int // the largest buffer that it was given
}

func (c *chunks) Read(p []byte) (int, error) {
	c.asked = max(c.asked, len(p))
	if len(c.chunks) == 0 {
		return 0, c.err
	}
	n := copy(p, c.chunks[0])
	if c.chunks[0] = c.chunks[0][n:]; len(c.chunks[0]) == 0 {
		c.chunks = c.chunks[1:]
	}
	return n, nil
}

func longHeader(t testing.TB, size int) ([]byte, Header) {
	h := Header{Version: 2, Source: baseSource, Destination: baseDestination}
	h.TLVs = []TLV{{0xe0, bytes.Repeat([]byte{0x0d}, size-headSize-12-3)}}
	b, err := AppendV2(nil, h, false)
	if err != nil || len(b) != size {
		t.Fatalf("%d bytes, %v", len(b), err)
	}
	return b, h
}

// Wherever the stream is cut, the header is the same and the payload whole.
func TestReadCutEverywhere(t *testing.T) {
	long, longWant := longHeader(t, 628)
	line := []byte("PROXY TCP4 192.0.2.10 198.51.100.5 51000 443\r\n")
	payload := []byte("PROXY is payload here\r\n\r\n\x00")
	for name, row := range map[string]struct {
		header []byte
		want   Header
	}{
		"version 2": {long, longWant},
		"version 1": {line, Header{Version: 1, Source: baseSource, Destination: baseDestination}},
	} {
		t.Run(name, func(t *testing.T) {
			stream := append(slices.Clone(row.header), payload...)
			check := func(r io.Reader) {
				t.Helper()
				h, rest, err := Read(r, V1|V2)
				if err != nil || !equal(h, row.want) {
					t.Fatalf("%+v, %v", h, err)
				}
				later, _ := io.ReadAll(r)
				if got := append(rest, later...); !bytes.Equal(got, payload) {
					t.Fatalf("the payload became %q", got)
				}
			}
			for cut := 1; cut < len(stream); cut++ {
				check(&chunks{chunks: [][]byte{slices.Clone(stream[:cut]), slices.Clone(stream[cut:])}, err: io.EOF})
			}
			check(iotest.OneByteReader(bytes.NewReader(stream)))
			check(bytes.NewReader(stream))
			check(iotest.DataErrReader(bytes.NewReader(stream)))
		})
	}
}

func TestReadRestIsNilWithoutPayload(t *testing.T) {
	if _, rest, err := Read(bytes.NewReader(unhex(t, baseHex)), V2); err != nil || rest != nil {
		t.Fatalf("%q, %v", rest, err)
	}
}

func TestReadLargePayloadBehind(t *testing.T) {
	header := head(commandProxy, familyTCP4, append(unhex(t, addrsHex), tlv(0xe0, make([]byte, 37))...))
	payload := bytes.Repeat([]byte("0123456789abcdef"), 1024)
	r := bytes.NewReader(append(slices.Clone(header), payload...))
	h, rest, err := Read(r, V2)
	if v, ok := h.Lookup(0xe0); err != nil || !ok || len(v) != 37 {
		t.Fatalf("%+v, %v", h, err)
	}
	later, _ := io.ReadAll(r)
	if !bytes.Equal(append(rest, later...), payload) {
		t.Fatal("the payload was changed")
	}
}

func TestReadEnds(t *testing.T) {
	cause := errors.New("read: connection reset")
	base := unhex(t, baseHex)
	for name, row := range map[string]struct {
		in   []byte
		end  error
		want error
	}{
		"nothing":             {nil, io.EOF, io.EOF},
		"an error at once":    {nil, cause, cause},
		"one byte":            {base[:1], io.EOF, io.ErrUnexpectedEOF},
		"all but one byte":    {base[:len(base)-1], io.EOF, io.ErrUnexpectedEOF},
		"half, then an error": {base[:14], cause, cause},
		"line without end":    {[]byte("PROXY TCP4 192."), io.EOF, io.ErrUnexpectedEOF},
		"no header":           {[]byte("GET / HTTP/1.1\r\n"), io.EOF, ErrMissing},
		"malformed":           {head(0x22, 0x11, base[16:]), io.EOF, ErrMalformed},
		"silent reader":       {nil, nil, io.ErrNoProgress},
		"half, then silence":  {base[:14], nil, io.ErrNoProgress},
	} {
		t.Run(name, func(t *testing.T) {
			r := &chunks{err: row.end}
			if row.in != nil {
				r.chunks = [][]byte{slices.Clone(row.in)}
			}
			h, rest, err := Read(r, V1|V2)
			if err != row.want || rest != nil || h.Version != 0 {
				t.Fatalf("%+v, %q, %v; want %v", h, rest, err, row.want)
			}
		})
	}
}

// A length that is only announced reserves nothing.
func TestReadMemory(t *testing.T) {
	t.Run("too long is refused with the head", func(t *testing.T) {
		r := &chunks{chunks: [][]byte{append(slices.Clone(signatureV2), 0x21, 0x11, 0xff, 0xff)}}
		if _, _, err := Read(r, V2); err != ErrTooLong || r.asked > firstRead {
			t.Fatalf("%v after asking for %d bytes", err, r.asked)
		}
	})
	t.Run("the buffer follows what came", func(t *testing.T) {
		long, want := longHeader(t, MaxSize)
		r := &chunks{chunks: [][]byte{slices.Clone(long[:16])}, err: io.EOF}
		if _, _, err := Read(r, V2); err != io.ErrUnexpectedEOF || r.asked > firstRead {
			t.Fatalf("%v after asking for %d bytes", err, r.asked)
		}
		r = &chunks{chunks: [][]byte{slices.Clone(long), []byte(strings.Repeat("p", 1<<20))}}
		h, rest, err := Read(r, V2)
		if err != nil || !equal(h, want) || len(rest) > MaxSize || r.asked > MaxSize {
			t.Fatalf("%v, %d bytes of rest, asked for %d", err, len(rest), r.asked)
		}
	})
}

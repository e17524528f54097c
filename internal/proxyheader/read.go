package proxyheader

import (
	"encoding/binary"
	"io"
	"slices"
)

const (
	// firstRead is enough for every version 1 line and most version 2 headers.
	firstRead = 256
	// maxEmptyReads is how often a reader may return nothing without an error.
	maxEmptyReads = 100
)

// Read reads one header from r and returns it with the bytes that were read
// beyond it. It holds at most MaxSize bytes plus one read's worth, and no more
// than twice what has come: an announced length alone reserves nothing. An end of
// stream before the first byte is io.EOF, inside the header io.ErrUnexpectedEOF.
func Read(r io.Reader, accept Versions) (h Header, rest []byte, err error) {
	buf := make([]byte, 0, firstRead)
	empty := 0
	for {
		n, readErr := r.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		if n > 0 {
			empty = 0
			h, size, err := Parse(buf, accept)
			if err == nil {
				if size < len(buf) {
					rest = buf[size:]
				}
				return h, rest, nil
			}
			if err != ErrShort {
				return Header{}, nil, err
			}
		}
		switch {
		case readErr == io.EOF && len(buf) > 0:
			return Header{}, nil, io.ErrUnexpectedEOF
		case readErr != nil:
			return Header{}, nil, readErr
		case n == 0:
			if empty++; empty == maxEmptyReads {
				return Header{}, nil, io.ErrNoProgress
			}
		}
		if len(buf) == cap(buf) {
			// Only a version 2 header is longer than the first read, and its
			// head is complete.
			size := headSize + int(binary.BigEndian.Uint16(buf[14:]))
			buf = slices.Grow(buf, min(len(buf), size-len(buf)))
		}
	}
}

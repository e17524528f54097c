package logging

import (
	"bytes"
	"io"
	"strconv"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// escaper is between one of slog's handlers, which write each line with one
// Write, and where the lines go: it escapes what the handler let through.
type escaper struct {
	w      io.Writer
	append func(to, line []byte) []byte
}

func (e escaper) Write(line []byte) (int, error) {
	plain := func(b byte) bool { return b < 0x7f }
	for i, b := range line {
		if !plain(b) {
			escaped := e.append(append(make([]byte, 0, len(line)+64), line[:i]...), line[i:])
			if _, err := e.w.Write(escaped); err != nil {
				return 0, err
			}
			return len(line), nil
		}
	}
	return e.w.Write(line)
}

// appendJSONLine escapes the characters that JSON takes raw and a terminal
// obeys: DEL, C1 controls, and all that is not to be seen. Beyond ASCII and at
// DEL a line of JSON is inside a string, where an escape may stand.
func appendJSONLine(to, line []byte) []byte {
	for len(line) > 0 {
		r, size := utf8.DecodeRune(line)
		if r < 0x7f || unicode.IsPrint(r) {
			to = append(to, line[:size]...)
		} else if high, low := utf16.EncodeRune(r); high != unicode.ReplacementChar {
			to = appendUnit(appendUnit(to, high), low)
		} else {
			to = appendUnit(to, r)
		}
		line = line[size:]
	}
	return to
}

func appendUnit(to []byte, unit rune) []byte {
	const hex = "0123456789abcdef"
	return append(to, '\\', 'u', hex[unit>>12&15], hex[unit>>8&15], hex[unit>>4&15], hex[unit&15])
}

// appendTextLine puts in quotes the words that hold a DEL. It is the one
// character that slog's text leaves unquoted and a terminal obeys; in quotes it
// is an escape already, so every one that is found stands in a bare word.
func appendTextLine(to, line []byte) []byte {
	for {
		del := bytes.IndexByte(line, 0x7f)
		if del < 0 {
			return append(to, line...)
		}
		to = append(to, line[:del]...)
		begin := bytes.LastIndexAny(to, " =") + 1
		end := del + bytes.IndexAny(line[del:], " =\n")
		word := string(to[begin:]) + string(line[del:end])
		to = strconv.AppendQuote(to[:begin], word)
		line = line[end:]
	}
}

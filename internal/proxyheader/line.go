package proxyheader

import (
	"net/netip"
	"strings"
)

// maxLine is the longest version 1 line, CRLF included (section 2.1).
const maxLine = 107

// lineSize returns the length of the version 1 line at the start of b, which
// holds the signature. A line that can no longer become a valid one is refused
// before its end has come.
func lineSize(b []byte) (int, error) {
	end := -1
	for i, c := range b[:min(len(b), maxLine-1)] {
		if c == '\n' {
			return 0, ErrMalformed
		}
		if c == '\r' {
			end = i
			break
		}
	}
	if end < 0 {
		if len(b) >= maxLine-1 || !checkLine(string(b), false) {
			return 0, ErrMalformed
		}
		return 0, ErrShort
	}
	if !checkLine(string(b[:end]), true) {
		return 0, ErrMalformed
	}
	if end+1 == len(b) {
		return 0, ErrShort
	}
	if b[end+1] != '\n' {
		return 0, ErrMalformed
	}
	return end + 2, nil
}

// checkLine reports whether text is a version 1 line without its CRLF or, if it
// is not whole, whether it can become one.
func checkLine(text string, whole bool) bool {
	fields := strings.Split(text, " ")
	open := len(fields) // the index of the field that may go on
	if !whole {
		open--
	}
	if !checkWord(fields[0], open == 0, "PROXY") {
		return false
	}
	if len(fields) == 1 {
		return !whole
	}
	if checkWord(fields[1], false, "UNKNOWN") {
		return true // section 2.1: what follows is ignored
	}
	if !checkWord(fields[1], open == 1, "TCP4", "TCP6", "UNKNOWN") {
		return false
	}
	if len(fields) > 6 || whole && len(fields) < 6 {
		return false
	}
	v6 := fields[1] == "TCP6"
	for i, f := range fields[2:] {
		valid := validPort
		if i < 2 {
			valid = func(s string) bool { return validAddr(s, v6) }
		}
		if i+2 != open && !valid(f) {
			return false
		}
		if i+2 == open && !begins(f, valid) {
			return false
		}
	}
	return true
}

// checkWord reports whether f is one of the words or, if it may go on, the beginning of one.
func checkWord(f string, open bool, words ...string) bool {
	for _, w := range words {
		if f == w || open && strings.HasPrefix(w, f) {
			return true
		}
	}
	return false
}

// begins reports whether f, an address or a port, can go on so that it is valid:
// it tries the shortest ends that there are.
func begins(f string, valid func(string) bool) bool {
	octets := strings.Repeat(".0", max(0, 3-strings.Count(f, ".")))
	for _, end := range []string{"", "0", ":", "::", octets, "0" + octets} {
		if valid(f + end) {
			return true
		}
	}
	return false
}

func validAddr(s string, v6 bool) bool {
	a, err := netip.ParseAddr(s)
	return err == nil && a.Is6() == v6 && a.Zone() == ""
}

func validPort(s string) bool {
	if s == "" || len(s) > 5 || s[0] == '0' && len(s) > 1 {
		return false
	}
	n := 0
	for _, c := range []byte(s) {
		if c < '0' || c > '9' {
			return false
		}
		n = n*10 + int(c-'0')
	}
	return n <= 65535
}

// decodeLine decodes a line that lineSize accepted.
func decodeLine(b []byte) (Header, error) {
	raw, err := decode(b)
	if err != nil {
		return Header{}, err
	}
	h := Header{Version: 1}
	h.Source, h.Destination = addresses(raw)
	return h, nil
}

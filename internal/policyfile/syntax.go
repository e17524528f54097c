package policyfile

import (
	"bytes"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"
)

// reparses bounds the work of finding a syntax error's place: how often a
// beginning of the file may still be parsed, and how many bytes in all.
type reparses struct{ times, bytes int }

func (r *reparses) spend(src []byte) bool {
	// The parser's time grows with the square of what is open at once.
	open := bytes.Count(src, []byte("{")) + bytes.Count(src, []byte("["))
	r.times--
	r.bytes -= len(src) + open*open
	return r.times >= 0 && r.bytes >= 0
}

var yamlLine = regexp.MustCompile(`^line (\d+): `)

// syntaxFault turns the parser's error into a fault with a place. The parser
// names the line where the surrounding construct began, if any, and no
// column; so the place is searched: it is where the longest beginning of the
// file that still parses ends. For a quote or bracket that is never closed
// that is where it opens.
func syntaxFault(file string, src []byte, err error) Fault {
	message := strings.TrimPrefix(err.Error(), "yaml: ")
	if strings.HasPrefix(message, "unknown anchor") {
		message = "an alias without its anchor; aliases are not allowed, write the value out"
	}
	at := position{1, 1}
	if m := yamlLine.FindStringSubmatch(message); m != nil {
		message = message[len(m[0]):]
		at.line, _ = strconv.Atoi(m[1])
	}
	budget := reparses{times: 1000, bytes: 4 << 20}
	if begin, ok := lastGoodLine(src, &budget); ok {
		at.line = 1 + bytes.Count(src[:begin], []byte("\n"))
		at.column = 1 + lastGoodColumn(src, begin, &budget)
	}
	text := ""
	if lines := bytes.Split(src, []byte("\n")); at.line <= len(lines) {
		text = string(lines[at.line-1])
	}
	return at.fault(file, "", "not valid YAML: "+message+syntaxHint(message, text))
}

// lastGoodLine returns the offset of the line that spoils the file: the
// beginning up to there parses, every longer one does not. It reports false if the budget ends first.
func lastGoodLine(src []byte, budget *reparses) (int, bool) {
	for end := len(src); end > 0; {
		end = bytes.LastIndexByte(src[:end-1], '\n') + 1
		if !budget.spend(src[:end]) {
			return 0, false
		}
		if _, _, err := documents(src[:end]); err == nil {
			return end, true
		}
	}
	return 0, true
}

// lastGoodColumn returns how many characters of the line at begin can be kept.
// Where the budget ends first, it points at the line's first word.
func lastGoodColumn(src []byte, begin int, budget *reparses) int {
	text := src[begin:]
	if i := bytes.IndexByte(text, '\n'); i >= 0 {
		text = text[:i]
	}
	for end := len(text); end > 0; {
		_, size := utf8.DecodeLastRune(text[:end])
		end -= size
		if !budget.spend(src[:begin+end]) {
			break
		}
		if _, _, err := documents(src[:begin+end]); err == nil {
			return utf8.RuneCount(text[:end])
		}
	}
	return len(text) - len(bytes.TrimLeft(text, " "))
}

// syntaxHint says what people usually did when the parser says message of the line text.
func syntaxHint(message, text string) string {
	switch {
	case strings.Contains(text, ": [:") || strings.Contains(text, "- [:"):
		return `; an address that begins with [ must stand in quotes: "[::]:443"`
	case strings.Contains(message, "mapping values are not allowed"):
		return `; indent the keys of one section alike, and put a text with ": " in it in quotes`
	case strings.Contains(message, "did not find expected key"), strings.Contains(message, "did not find expected '-' indicator"):
		return "; indent the keys of one section alike"
	case strings.Contains(message, "unexpected end of stream"), strings.Contains(message, "did not find expected ','"):
		return "; a quote or bracket that opens here is not closed"
	case strings.Contains(message, "could not find expected ':'"):
		return `; a key is followed by a colon and a space`
	case strings.Contains(message, "incompatible YAML document"), strings.Contains(message, "directive"):
		return "; take the line that begins with % out"
	case strings.Contains(message, "cannot start any token"):
		return "; put a text that begins with this character in quotes"
	}
	return ""
}

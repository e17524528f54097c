package websocket

import (
	"bufio"
	"bytes"
	"crypto/sha1"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"
)

// MaxHead is the longest HTTP request head that is taken, in bytes, its blank line included.
const MaxHead = 8 << 10

// Why a request head is not waited for any longer.
var (
	ErrHead    = errors.New("websocket: request head longer than 8192 bytes")
	ErrNotHTTP = errors.New("websocket: no HTTP request begins like that")
)

// HeadLength returns the length of the request head at the start of b, up to and
// including its blank line, or 0 while that has not come. scanned is how much of
// b an earlier call has seen.
func HeadLength(b []byte, scanned int) (int, error) {
	// A method begins with a letter; TLS and a PROXY header do not.
	if len(b) > 0 && (b[0]|0x20 < 'a' || b[0]|0x20 > 'z') {
		return 0, ErrNotHTTP
	}
	// The blank line may have begun in bytes that were seen.
	for i := max(scanned-3, 0); i < len(b) && i < MaxHead; i++ {
		if b[i] != '\n' {
			continue
		}
		rest := b[i+1:]
		n := 0
		switch {
		case bytes.HasPrefix(rest, []byte("\r\n")):
			n = i + 3
		case bytes.HasPrefix(rest, []byte("\n")):
			n = i + 2
		}
		if n > MaxHead {
			return 0, ErrHead
		}
		if n > 0 {
			return n, nil
		}
	}
	if len(b) >= MaxHead {
		return 0, ErrHead
	}
	return 0, nil
}

// Endpoint is where WebSocket connections are taken.
type Endpoint struct {
	Path string
	// Subprotocol is selected where the client offers it. A client that offers
	// none is taken without one; a client that offers only others is refused.
	Subprotocol string
}

// Answer is what a request gets.
type Answer struct {
	Response []byte
	Upgraded bool // 101: frames follow
	Decoy    bool // the request was no upgrade for the endpoint
	// What a decoy asked for. The path is empty where it was spelled in another way
	// than paths are.
	Method, Path string
}

// Judge answers the request whose head, blank line included, is given. now is
// for the Date of a response.
func (e Endpoint) Judge(head []byte, now time.Time) Answer {
	refuse := func(status int) Answer { return Answer{Response: Response(status, true, now)} }
	if ambiguous(head) {
		return refuse(http.StatusBadRequest)
	}
	r, err := http.ReadRequest(bufio.NewReaderSize(bytes.NewReader(head), 512))
	if err != nil || !tokens(r.Header) {
		return refuse(http.StatusBadRequest)
	}
	if r.URL.Path != e.Path || r.URL.RawPath != "" || !hasToken(r.Header["Upgrade"], "websocket") {
		a := Answer{Response: Response(http.StatusNotFound, r.Method != http.MethodHead, now), Decoy: true, Method: r.Method}
		if r.URL.RawPath == "" {
			a.Path = r.URL.Path
		}
		return a
	}
	if r.Method != http.MethodGet || r.ProtoMajor != 1 || r.ProtoMinor != 1 ||
		r.ContentLength != 0 || len(r.TransferEncoding) > 0 ||
		r.Host == "" || hosts(head) != 1 ||
		len(r.Header["Upgrade"]) != 1 || !strings.EqualFold(r.Header.Get("Upgrade"), "websocket") ||
		len(r.Header["Connection"]) != 1 || !hasToken(r.Header["Connection"], "upgrade") ||
		len(r.Header["Sec-Websocket-Version"]) != 1 || len(r.Header["Sec-Websocket-Key"]) != 1 {
		return refuse(http.StatusBadRequest)
	}
	if r.Header.Get("Sec-Websocket-Version") != "13" {
		return refuse(http.StatusUpgradeRequired)
	}
	key := r.Header.Get("Sec-Websocket-Key")
	if raw, err := base64.StdEncoding.Strict().DecodeString(key); err != nil || len(raw) != 16 {
		return refuse(http.StatusBadRequest)
	}
	selected := ""
	if offered := r.Header["Sec-Websocket-Protocol"]; len(offered) > 0 {
		// Subprotocol names are compared with their case (RFC 6455, section 11.3.4).
		if !hasExactToken(offered, e.Subprotocol) {
			return refuse(http.StatusBadRequest)
		}
		selected = e.Subprotocol
	}
	return Answer{Response: switching(key, selected), Upgraded: true}
}

// switching is the 101 response.
func switching(key, subprotocol string) []byte {
	sum := sha1.Sum([]byte(key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"))
	b := make([]byte, 0, 192)
	b = append(b, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: "...)
	b = base64.StdEncoding.AppendEncode(b, sum[:])
	b = append(b, "\r\n"...)
	if subprotocol != "" {
		b = append(b, "Sec-WebSocket-Protocol: "+subprotocol+"\r\n"...)
	}
	return append(b, "\r\n"...)
}

// Response is a whole HTTP response of the status, after which the connection closes.
func Response(status int, body bool, now time.Time) []byte {
	text := http.StatusText(status)
	content := Page(status)
	extra := ""
	if status == http.StatusUpgradeRequired {
		extra = "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
	}
	head := fmt.Sprintf("HTTP/1.1 %d %s\r\nDate: %s\r\nContent-Type: text/html; charset=utf-8\r\nContent-Length: %d\r\n%sConnection: close\r\n\r\n",
		status, text, now.UTC().Format(http.TimeFormat), len(content), extra)
	if !body {
		return []byte(head)
	}
	return []byte(head + content)
}

// Page is the content of a Response.
func Page(status int) string {
	return fmt.Sprintf("<html>\n<head><title>%d %s</title></head>\n<body>\n<h1>%[2]s</h1>\n</body>\n</html>\n", status, http.StatusText(status))
}

// ambiguous reports a head that two parsers could read in two ways: a line that
// does not end in CR LF or that continues the one before, or a character that no
// field value may have (RFC 9112, sections 2.2 and 5.2; RFC 9110, section 5.5).
func ambiguous(head []byte) bool {
	for i, c := range head {
		before, behind := byte(0), byte(0)
		if i > 0 {
			before = head[i-1]
		}
		if i+1 < len(head) {
			behind = head[i+1]
		}
		switch {
		case c == '\n' && before != '\r', c == '\r' && behind != '\n':
			return true
		case (c == ' ' || c == '\t') && before == '\n':
			return true
		case c < ' ' && c != '\t' && c != '\r' && c != '\n', c == 0x7f:
			return true
		}
	}
	return false
}

// tokens reports whether every field name is a token (RFC 9110, section 5.6.2):
// http.ReadRequest keeps a name with a space before its colon apart from the
// name without.
func tokens(h http.Header) bool {
	for name := range h {
		for i := range len(name) {
			c := name[i]
			if c <= ' ' || c >= 0x7f || strings.IndexByte("\"(),/:;<=>?@[\\]{}", c) >= 0 {
				return false
			}
		}
	}
	return true
}

// hosts counts the Host lines, which http.ReadRequest folds into one.
func hosts(head []byte) (n int) {
	for line := range bytes.SplitSeq(head, []byte("\r\n")) {
		name, _, found := bytes.Cut(line, []byte(":"))
		if found && bytes.EqualFold(name, []byte("host")) {
			n++
		}
	}
	return n
}

// hasToken reports whether the comma-separated lists hold the token, in any case.
func hasToken(lists []string, token string) bool {
	for _, list := range lists {
		for t := range strings.SplitSeq(list, ",") {
			if strings.EqualFold(strings.Trim(t, " \t"), token) {
				return true
			}
		}
	}
	return false
}

// hasExactToken is hasToken with regard to case.
func hasExactToken(lists []string, token string) bool {
	for _, list := range lists {
		for t := range strings.SplitSeq(list, ",") {
			if strings.Trim(t, " \t") == token {
				return true
			}
		}
	}
	return false
}

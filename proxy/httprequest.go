package proxy

import (
	"errors"
	"io"
	"net/http"
	"net/http/httputil"
	"strconv"
	"strings"
	"sync/atomic"

	"relayedge/admission/httpguard"
)

// RequestID is the field that names a request: to the relay, in refusals and in the
// answer. What it says begins with the id of the connection, which the log has.
const RequestID = "X-Request-Id"

// ServeHTTP serves one request: what the client claims of itself is taken off,
// the guard is asked, and what it lets in is for pass.
func (h *httpSession) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	defer h.contain()
	h.requests++
	h.id = h.s.id + "-" + strconv.Itoa(h.requests)
	// net/http takes a body by its chunks where there is a Content-Length too, and
	// drops a Transfer-Encoding of HTTP/1.0 without a word. Whoever is before us may
	// have taken the body by the other: what follows is not believed.
	h.closes, h.body = len(r.TransferEncoding) > 0 || !r.ProtoAtLeast(1, 1), nil
	h.oversized = headerFields(r) > maxHeaderFields || headerBytes(r) > h.s.terms.times.headerBytes // as it came
	disclaim(r.Header)
	r.Header.Set(RequestID, h.id)
	w.Header().Set(RequestID, h.id)
	if h.closes || h.isLast() {
		w.Header().Set("Connection", "close")
	}
	if !h.refuses(w, r) {
		h.pass(w, r)
	}
	h.answering.Store(false)
}

// refuses asks the guard, and answers a request that is over the limit.
func (h *httpSession) refuses(w http.ResponseWriter, r *http.Request) bool {
	guard := h.s.terms.guard
	if guard == nil {
		return false
	}
	decision := guard.Take(r)
	if decision.Allowed {
		return false
	}
	reason := RequestRate
	if decision.Unavailable {
		reason = StoreUnavailable
	}
	h.s.server.stats.refuse(reason)
	guard.Refuse(w, r, decision)
	return true
}

// contain ends the session for a panic of ours, and for an answer that was cut
// short, which net/http says by a panic too.
func (h *httpSession) contain() {
	p := recover()
	if p == nil {
		return
	}
	if p == http.ErrAbortHandler {
		// Where the client took no more, that has been named.
		h.s.cutShort(UpstreamClosed)
	} else {
		h.s.panicked(p)
		h.s.stop(TaskPanic)
	}
	if h.hijacked { // else net/http has yet to let go of the connection
		h.end()
	}
	panic(http.ErrAbortHandler)
}

// pass judges the request's shape and hands it to the relay.
func (h *httpSession) pass(w http.ResponseWriter, r *http.Request) {
	times := h.s.terms.times
	switch {
	case r.ProtoMajor != 1:
		h.answer(w, http.StatusHTTPVersionNotSupported, "http_version", "This version of HTTP is not spoken here.")
		return
	case r.Method == http.MethodConnect:
		h.answer(w, http.StatusMethodNotAllowed, "method_not_allowed", "CONNECT is not for this server.")
		return
	case h.oversized:
		h.answer(w, http.StatusRequestHeaderFieldsTooLarge, "header_too_large", "The header is too large.")
		return
	case r.ContentLength > times.bodyBytes:
		h.answer(w, http.StatusRequestEntityTooLarge, "body_too_large", "The body is too large.")
		return
	}
	if r.ContentLength != 0 {
		h.body = &requestBody{ReadCloser: r.Body, left: times.bodyBytes}
	}
	if reason := h.reach(); reason != "" {
		h.unreached(w, reason)
		return
	}
	out := new(*r)
	if h.body != nil {
		out.Body = h.body
	}
	if !mayUpgrade(r) {
		out.Header.Del("Upgrade")
	}
	// What stands there is added to what the relay says; amend and answer set ours.
	w.Header().Del(RequestID)
	w.Header().Del("Connection")
	h.proxy.ServeHTTP(&answerWriter{
		ResponseWriter: w, old: !r.ProtoAtLeast(1, 1),
		continues: r.Header.Get("Expect") != "" && r.ContentLength != 0,
	}, out)
}

// maxInterim is how many interim answers (1xx) of a request are passed on.
const maxInterim = 16

// answerWriter is a client's answer as the relay's reaches it: of interim answers
// those few that a client may have, and none for HTTP/1.0, which knows none
// (RFC 9110, section 15.2); and no content type that the relay has not named, since
// what net/http takes for HTML may be what somebody has uploaded.
type answerWriter struct {
	http.ResponseWriter
	old       bool
	continues bool // net/http says 100 itself once the body is read, which is when the relay has: the relay's own would be a second
	interim   int
}

func (w *answerWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *answerWriter) WriteHeader(status int) {
	if status < http.StatusOK {
		if w.interim++; w.old || w.interim > maxInterim || w.continues && status == http.StatusContinue {
			return
		}
	} else if header := w.Header(); header.Get("Content-Type") == "" {
		header["Content-Type"] = nil
	}
	w.ResponseWriter.WriteHeader(status)
}

// rewrite makes the relay's request of the client's, whose claims and
// hop-by-hop fields are off it already.
func (h *httpSession) rewrite(r *httputil.ProxyRequest) {
	r.Out.URL.Scheme, r.Out.URL.Host = "http", "relay" // names the connection for the transport
	r.Out.Host = r.In.Host
	if r.Out.Host == "" {
		r.Out.Host = "localhost" // HTTP/1.0 may say none
	}
	r.Out.URL.RawQuery = r.In.URL.RawQuery // as it came, whether or not it can be parsed
	r.Out.Trailer = nil                    // what comes behind a body could pass for a header
	header := r.Out.Header
	header.Set(RequestID, h.id) // Connection may have listed it
	if r.In.Host != "" {
		header.Set("X-Forwarded-Host", r.In.Host)
	}
	header.Set("X-Forwarded-Proto", "http")
	if h.s.state != nil {
		header.Set("X-Forwarded-Proto", "https")
	}
	client := h.s.client.Addr()
	if !client.IsValid() {
		return
	}
	switch h.told {
	case "x-forwarded-for":
		header.Set("X-Forwarded-For", client.String())
	case "x-real-ip":
		header.Set("X-Real-IP", client.String())
	}
}

// amend makes the client's answer of the relay's.
func (h *httpSession) amend(answer *http.Response) error {
	h.answering.Store(true)
	answer.Header.Set(RequestID, h.id)
	if h.closes || h.isLast() {
		answer.Header.Set("Connection", "close")
	}
	return nil
}

// failed answers a request that the relay has not answered, and takes over one
// whose connection goes on as another protocol.
func (h *httpSession) failed(w http.ResponseWriter, r *http.Request, err error) {
	if switched, ok := errors.AsType[*switching](err); ok {
		h.upgrade(w, r, switched.answer)
		return
	}
	refused, unreached := errors.AsType[unreachable](err)
	switch {
	case unreached:
		h.unreached(w, refused.reason)
	case h.body != nil && h.body.tooLarge.Load():
		h.answer(w, http.StatusRequestEntityTooLarge, "body_too_large", "The body is too large.")
	case h.client.tooLate():
		h.answer(w, http.StatusRequestTimeout, "request_timeout", "The request came too slowly.")
	case h.body != nil && h.body.broken.Load():
		h.answer(w, http.StatusBadRequest, "bad_request", "The body is malformed.")
	case r.Context().Err() != nil:
		h.s.end(ClientClosed) // unless the session was stopped
		panic(http.ErrAbortHandler)
	case h.stall.Load():
		h.unreached(w, WriterStall)
	case timedOut(err):
		h.unreached(w, UpstreamTimeout)
	default:
		h.unreached(w, UpstreamUnavailable)
	}
}

func timedOut(err error) bool {
	timeout, ok := errors.AsType[interface {
		error
		Timeout() bool
	}](err)
	return ok && timeout.Timeout()
}

// unreached answers a request that no relay has answered. It is the connection's
// last, and the reason of its end.
func (h *httpSession) unreached(w http.ResponseWriter, reason Reason) {
	h.s.end(reason)
	switch reason {
	case UpstreamTimeout, WriterStall:
		h.answer(w, http.StatusGatewayTimeout, "upstream_timeout", "The service did not answer in time.")
	case LocalPorts, Descriptors:
		h.answer(w, http.StatusServiceUnavailable, "upstream_unavailable", "The service is busy.")
	default:
		h.answer(w, http.StatusBadGateway, "upstream_unavailable", "The service is not available.")
	}
}

// answer ends the connection with an answer of our own.
func (h *httpSession) answer(w http.ResponseWriter, status int, code, message string) {
	header := w.Header()
	clear(header)
	header.Set(RequestID, h.id)
	header.Set("Connection", "close")
	header.Set("Content-Type", "application/json")
	header.Set("Cache-Control", "no-store")
	body := httpguard.Fault(code, message, h.id, nil)
	header.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	w.Write(body)
}

// headerFields counts a request's header fields.
func headerFields(r *http.Request) (n int) {
	for _, values := range r.Header {
		n += len(values)
	}
	return n
}

// headerBytes is how long a request's first line and header are, each field
// written with one space behind its colon.
func headerBytes(r *http.Request) int {
	n := len(r.Method) + len(r.RequestURI) + len(" ") + len(" HTTP/1.1\r\n") + len("\r\n")
	if r.Host != "" {
		n += len("Host: \r\n") + len(r.Host)
	}
	for name, values := range r.Header {
		for _, v := range values {
			n += len(name) + len(v) + len(": \r\n")
		}
	}
	return n
}

// requestBody is a client's body on its way to the relay. It lets max_request_body_bytes
// pass, and keeps what went wrong. It is read by the transport, and looked at
// by the handler.
type requestBody struct {
	io.ReadCloser
	left     int64 // the reader's
	tooLarge atomic.Bool
	broken   atomic.Bool // malformed, or cut short
}

var errTooLarge = errors.New("the body is larger than max_request_body_bytes")

func (b *requestBody) Read(p []byte) (int, error) {
	if int64(len(p))-1 > b.left {
		p = p[:b.left+1]
	}
	n, err := b.ReadCloser.Read(p)
	if int64(n) > b.left {
		b.tooLarge.Store(true)
		return int(b.left), errTooLarge
	}
	b.left -= int64(n)
	if err != nil && err != io.EOF {
		b.broken.Store(true)
	}
	return n, err
}

// upgrader is the transport, with which a relay's consent to another protocol
// is no answer to a request.
type upgrader struct{ *http.Transport }

// switching is an answer with status 101.
type switching struct{ answer *http.Response }

func (*switching) Error() string { return "the relay switches protocols" }

func (u upgrader) RoundTrip(r *http.Request) (*http.Response, error) {
	answer, err := u.Transport.RoundTrip(r)
	if err != nil || answer.StatusCode != http.StatusSwitchingProtocols {
		return answer, err
	}
	return nil, &switching{answer}
}

// mayUpgrade reports whether a request may make its connection one of another
// protocol. WebSocket alone: by others (h2c) a client would send the relay requests
// that nobody has looked at.
func mayUpgrade(r *http.Request) bool {
	asked := r.Header["Upgrade"]
	return r.Method == http.MethodGet && r.ProtoAtLeast(1, 1) && r.ContentLength == 0 && len(asked) == 1 && strings.EqualFold(asked[0], "websocket")
}

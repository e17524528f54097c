package proxy

import (
	"io"
	"net/http"
	"strings"
	"time"
)

// upgrade tells the client what the relay consents to, and has the session go on
// with the bytes of the other protocol.
func (h *httpSession) upgrade(w http.ResponseWriter, asked *http.Request, answer *http.Response) {
	body, ok := answer.Body.(io.ReadWriteCloser)
	if !ok || !mayUpgrade(asked) || !strings.EqualFold(answer.Header.Get("Upgrade"), "websocket") {
		// It consents to what nobody asked for.
		answer.Body.Close()
		h.unreached(w, UpstreamUnavailable)
		return
	}
	h.mu.Lock()
	relay := h.relay
	h.mu.Unlock()
	conn, buffered, err := http.NewResponseController(w).Hijack()
	h.hijacked = err == nil
	if err != nil || relay == nil { // the relay's connection is lost
		answer.Body.Close()
		panic(http.ErrAbortHandler)
	}
	defer h.end()
	answer.Header.Set(RequestID, h.id)
	answer.Body = nil
	answer.Write(buffered)
	if buffered.Flush() != nil { // Write has ended the session
		return
	}
	next := &httpUpgrade{relay: relay.socket}
	relay.upgraded.Store(true)
	next.early.relay, _ = io.ReadAll(body) // ends with errWouldBlock
	next.early.client, _ = buffered.Peek(buffered.Reader.Buffered())
	conn.SetReadDeadline(time.Time{})
	h.s.wire.SetReadDeadline(time.Time{})
	relay.socket.SetReadDeadline(time.Time{})
	h.next = next
}

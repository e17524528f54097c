package client

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coder/websocket"

	"relayedge/relaycore/wire"
)

// Options are what Dial may be told. The zero Options are for a relay with a
// public certificate.
type Options struct {
	// TLS is used for wss URLs; nil: the defaults. Its NextProtos is not used:
	// WebSocket needs HTTP/1.1.
	TLS *tls.Config
	// DialContext makes the connection below; nil: TCP.
	DialContext func(ctx context.Context, network, addr string) (net.Conn, error)
}

// Session is a connection to a relay. Sending is safe from several goroutines
// at once; Receive and Publish are for one goroutine at a time.
type Session struct {
	conn    *websocket.Conn
	welcome wire.Welcome
	tls     *tls.ConnectionState  // nil without TLS
	request atomic.Uint64         // the latest request id
	early   []wire.Frame          // what came while Publish waited for its answer
	lost    atomic.Pointer[error] // what has failed first; a close frame in its place

	closeOnce sync.Once
}

// RefusedError is an ERROR of the relay.
type RefusedError struct {
	Refusal wire.Error
}

func (e *RefusedError) Error() string {
	return fmt.Sprintf("the relay refused %v: %s", e.Refusal.Frame, e.Refusal.Text)
}

// Dial connects to a relay's URL (ws or wss), says HELLO and waits for WELCOME.
// ctx bounds all of that, and nothing after it.
func Dial(ctx context.Context, url string, o Options) (*Session, error) {
	dial := o.DialContext
	if dial == nil {
		dial = new(net.Dialer).DialContext
	}
	s := &Session{}
	s.request.Store(mathrand.Uint64())
	up := &upgrader{dial: dial, tls: o.TLS}
	conn, response, err := websocket.Dial(ctx, url, &websocket.DialOptions{
		HTTPClient: &http.Client{
			Transport: up,
			CheckRedirect: func(*http.Request, []*http.Request) error {
				return http.ErrUseLastResponse
			},
		},
		Subprotocols:    []string{wire.Subprotocol},
		CompressionMode: websocket.CompressionDisabled,
	})
	if err != nil {
		if response != nil && response.StatusCode != http.StatusSwitchingProtocols {
			return nil, &UpgradeError{
				Status: response.StatusCode, Answer: firstLine(response.Body),
				RetryAfter: retryAfter(response.Header, time.Now()),
			}
		}
		return nil, err
	}
	s.conn, s.tls = conn, up.state
	conn.SetReadLimit(wire.MaxServerFrame)
	if err := s.hello(ctx); err != nil {
		s.abandon()
		return nil, err
	}
	return s, nil
}

// UpgradeError is an HTTP answer in place of an upgrade.
type UpgradeError struct {
	Status int
	Answer string // the first line of its body, quoted; empty without one
	// RetryAfter is what its header asks for; 0: nothing.
	RetryAfter time.Duration
}

func (e *UpgradeError) Error() string {
	text := fmt.Sprintf("HTTP status %d (%s) in place of a WebSocket upgrade", e.Status, http.StatusText(e.Status))
	if e.Answer != "" {
		text += ": " + e.Answer
	}
	return text
}

// firstLine quotes the first line of a body, as much of it as a person reads.
func firstLine(body io.Reader) string {
	b, _ := io.ReadAll(io.LimitReader(body, 200))
	line, _, _ := strings.Cut(strings.TrimSpace(string(b)), "\n")
	if line == "" || line[0] == '<' { // a page: nothing for people in one line of it
		return ""
	}
	return strconv.Quote(line)
}

func (s *Session) hello(ctx context.Context) error {
	if s.conn.Subprotocol() != wire.Subprotocol {
		return &finalError{fmt.Errorf("the server does not speak %s", wire.Subprotocol)}
	}
	if err := s.send(ctx, wire.Hello{Version: wire.Version}); err != nil {
		return fmt.Errorf("HELLO: %w", err)
	}
	f, err := s.Receive(ctx)
	if err != nil {
		return fmt.Errorf("HELLO: %w", err)
	}
	switch f := f.(type) {
	case wire.Welcome:
		if f.Version != wire.Version {
			return &finalError{fmt.Errorf("HELLO: the relay answered with protocol version %d", f.Version)}
		}
		s.welcome = f
		return nil
	case wire.Error:
		return &RefusedError{f}
	default:
		return &finalError{fmt.Errorf("HELLO: the relay answered with %v", f.Type())}
	}
}

// Welcome is the relay's greeting: its limits, and what a proof is bound to.
func (s *Session) Welcome() wire.Welcome { return s.welcome }

// TLS returns the state of the TLS session; false for ws URLs.
func (s *Session) TLS() (tls.ConnectionState, bool) {
	if s.tls == nil {
		return tls.ConnectionState{}, false
	}
	return *s.tls, true
}

// errNoExporter is the fault of a TLS session that cannot be bound to.
var errNoExporter = errors.New("the relay wants the proof bound to the TLS session, and this connection has no exporter (no TLS, or TLS 1.2 without extended master secret)")

// binding is the channel binding that the relay asks for: tls-exporter of RFC 9266, or zeros.
func (s *Session) binding() (b [32]byte, err error) {
	if s.welcome.Binding == wire.BindingNone {
		return b, nil
	}
	if s.tls == nil {
		return b, errNoExporter
	}
	material, err := s.tls.ExportKeyingMaterial("EXPORTER-Channel-Binding", nil, len(b))
	if err != nil {
		return b, fmt.Errorf("%w: %w", errNoExporter, err)
	}
	return [32]byte(material), nil
}

// Publish proves the identity of key and makes this connection its own: the
// relay closes an older one. bundle is opaque, at most wire.MaxBundle bytes.
// Frames that come before the answer are kept for Receive. A refusal is a *RefusedError.
func (s *Session) Publish(ctx context.Context, key ed25519.PrivateKey, bundle []byte) error {
	if len(bundle) > wire.MaxBundle {
		return fmt.Errorf("a bundle of %d bytes is longer than %d", len(bundle), wire.MaxBundle)
	}
	binding, err := s.binding()
	if err != nil {
		return err
	}
	if err := s.send(ctx, wire.NewPublish(key, bundle, s.welcome.Nonce, binding)); err != nil {
		return err
	}
	for {
		f, err := s.receive(ctx)
		if err != nil {
			return err
		}
		switch f := f.(type) {
		case wire.Published:
			return nil
		case wire.Error:
			if f.Frame == wire.TypePublish {
				return &RefusedError{f}
			}
		}
		s.early = append(s.early, f)
	}
}

// Ask asks for a conversation with target. The request's id comes back in
// CIRCUIT_OPEN once the target has asked too, or in RATE_LIMITED or ERROR. knock
// is what the target gets to see: at most wire.AskSize bytes, filled up with zeros.
func (s *Session) Ask(ctx context.Context, target wire.Identity, knock []byte) (request uint64, err error) {
	if len(knock) > wire.AskSize {
		return 0, fmt.Errorf("a knock of %d bytes is longer than %d", len(knock), wire.AskSize)
	}
	content := make([]byte, wire.AskSize)
	copy(content, knock)
	request = s.request.Add(1)
	return request, s.send(ctx, wire.Ask{RequestID: request, Mode: wire.Named, Key: target, Content: content})
}

// AskBlinded asks for a conversation with whoever asks under the same token, which
// both sides derive. The answers are those of Ask.
func (s *Session) AskBlinded(ctx context.Context, token [32]byte) (request uint64, err error) {
	request = s.request.Add(1)
	return request, s.send(ctx, wire.Ask{RequestID: request, Mode: wire.Blinded, Key: token, Content: make([]byte, wire.AskSize)})
}

// Send sends a message on an open circuit, under an id of its own making. The
// relay answers with MESSAGE_ACK once it is queued for the other side or held for
// it, or with ERROR or RATE_LIMITED, which mean that it is neither.
func (s *Session) Send(ctx context.Context, circuit uint64, payload []byte) (wire.MessageID, error) {
	var id wire.MessageID
	rand.Read(id[:])
	return id, s.SendAs(ctx, circuit, id, payload)
}

// SendAs is Send with the caller's id, for sending the same message again.
func (s *Session) SendAs(ctx context.Context, circuit uint64, id wire.MessageID, payload []byte) error {
	if most := int(s.welcome.MaxMessageBytes) - wire.SendHead; len(payload) > most {
		return fmt.Errorf("a message of %d bytes is longer than %d", len(payload), most)
	}
	return s.send(ctx, wire.Send{Circuit: circuit, ID: id, Payload: payload})
}

// Ack tells the relay which messages have been delivered.
func (s *Session) Ack(ctx context.Context, ids ...wire.MessageID) error {
	for len(ids) > 0 {
		n := min(len(ids), wire.MaxAckIDs)
		if err := s.send(ctx, wire.Ack{IDs: ids[:n]}); err != nil {
			return err
		}
		ids = ids[n:]
	}
	return nil
}

// Leave closes a circuit.
func (s *Session) Leave(ctx context.Context, circuit uint64) error {
	return s.send(ctx, wire.Close{Circuit: circuit})
}

func (s *Session) send(ctx context.Context, f wire.Frame) error {
	err := s.conn.Write(ctx, websocket.MessageBinary, f.Append(nil))
	s.note(err)
	return err
}

// Receive returns the relay's next frame. Pings are answered while it waits. An
// end of ctx closes the connection.
func (s *Session) Receive(ctx context.Context) (wire.Frame, error) {
	if len(s.early) > 0 {
		f := s.early[0]
		s.early = s.early[1:]
		return f, nil
	}
	return s.receive(ctx)
}

func (s *Session) receive(ctx context.Context) (wire.Frame, error) {
	kind, b, err := s.conn.Read(ctx)
	if err != nil {
		s.note(err)
		return nil, err
	}
	if kind != websocket.MessageBinary {
		return nil, &finalError{errors.New("the relay sent text")}
	}
	return wire.DecodeServer(b)
}

// A client says something every 22 to 38 seconds, at random.
const (
	keepAliveMin = 22 * time.Second
	keepAliveMax = 38 * time.Second
)

// KeepAlive keeps an otherwise silent session alive until ctx ends or sending
// fails; it returns the error. The relay's pings are answered by Receive, which
// must be called meanwhile.
func (s *Session) KeepAlive(ctx context.Context) error {
	timer := time.NewTimer(keepAliveDelay())
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-timer.C:
		}
		if err := s.send(ctx, wire.Keepalive{}); err != nil {
			return err
		}
		timer.Reset(keepAliveDelay())
	}
}

func keepAliveDelay() time.Duration {
	return keepAliveMin + mathrand.N(keepAliveMax-keepAliveMin+1)
}

// Close ends the session with a normal closure. Calls after the first do nothing.
func (s *Session) Close() error {
	var err error
	s.closeOnce.Do(func() {
		err = s.conn.Close(websocket.StatusNormalClosure, "")
	})
	return err
}

// abandon ends the session without waiting for the relay.
func (s *Session) abandon() {
	s.closeOnce.Do(func() { s.conn.CloseNow() })
}

package client

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/coder/websocket"

	"relayedge/relaycore/wire"
)

// Try holds two sessions against whatever stands at the URL target: both publish an
// identity of the moment, ask for each other, exchange a message each way and
// leave. It prints a line for each step that worked, and returns an error that
// names the step that did not and says what to look at.
func Try(ctx context.Context, target string, cfg *tls.Config, out io.Writer) error {
	t := trial{ctx: ctx, url: target, tls: cfg, out: out, start: time.Now()}
	defer func() {
		for _, s := range t.sessions {
			if s != nil {
				s.abandon()
			}
		}
	}()
	for _, step := range []struct {
		name string
		do   func() (string, error)
	}{
		{"connect", t.connect},
		{"publish", t.publish},
		{"pair", t.pair},
		{"message from A to B", func() (string, error) { return t.message(0, 1) }},
		{"message from B to A", func() (string, error) { return t.message(1, 0) }},
		{"leave", t.leave},
	} {
		what, err := step.do()
		if err != nil {
			return &StepError{Step: step.name, Advice: advice(err), Err: err}
		}
		fmt.Fprintf(out, "%s: %s\n", step.name, what)
	}
	fmt.Fprintf(out, "all well in %v\n", time.Since(t.start).Round(time.Millisecond))
	return nil
}

// StepError is a step of Try that failed.
type StepError struct {
	Step   string
	Advice string // what to look at
	Err    error
}

func (e *StepError) Error() string {
	s := fmt.Sprintf("%s failed: %v", e.Step, e.Err)
	if e.Advice != "" {
		s += "\n  " + e.Advice
	}
	return s
}

func (e *StepError) Unwrap() error { return e.Err }

type trial struct {
	ctx   context.Context
	url   string
	tls   *tls.Config
	out   io.Writer
	start time.Time

	sessions [2]*Session
	keys     [2]ed25519.PrivateKey
	circuit  uint64
}

func (t *trial) identity(i int) wire.Identity {
	return wire.Identity(t.keys[i].Public().(ed25519.PublicKey))
}

func (t *trial) connect() (string, error) {
	if u, err := url.Parse(t.url); err != nil || u.Hostname() == "" || u.Scheme != "ws" && u.Scheme != "wss" || !validPort(u.Port()) {
		return "", fmt.Errorf("%q %w", t.url, errURL)
	}
	for i := range t.sessions {
		s, err := Dial(t.ctx, t.url, Options{TLS: t.tls})
		if err != nil {
			return "", err
		}
		t.sessions[i] = s
	}
	over := "without TLS"
	if state, ok := t.sessions[0].TLS(); ok {
		over = fmt.Sprintf("%s, %s", tls.VersionName(state.Version), tls.CipherSuiteName(state.CipherSuite))
	}
	w := t.sessions[0].Welcome()
	return fmt.Sprintf("two sessions welcomed (%s; messages up to %d bytes, silence up to %d s)",
		over, w.MaxMessageBytes, w.ConnectionTimeoutSecs), nil
}

func (t *trial) publish() (string, error) {
	for i, s := range t.sessions {
		var err error
		if _, t.keys[i], err = ed25519.GenerateKey(nil); err != nil {
			return "", err
		}
		if err := s.Publish(t.ctx, t.keys[i], []byte("relaycore try")); err != nil {
			return "", err
		}
	}
	bound := "not bound to a TLS session: the relay does not ask for it"
	if t.sessions[0].Welcome().Binding == wire.BindingExporter {
		bound = "bound to the TLS sessions"
	}
	return "two identities proved, " + bound, nil
}

func (t *trial) pair() (string, error) {
	a, b := t.sessions[0], t.sessions[1]
	asked, err := a.Ask(t.ctx, t.identity(1), []byte("knock"))
	if err != nil {
		return "", err
	}
	knock, err := await[wire.Knock](t.ctx, b)
	if err != nil {
		return "", err
	}
	if knock.Asker != t.identity(0) || !bytes.HasPrefix(knock.Content, []byte("knock\x00")) {
		return "", errors.New("the knock that came is not the one that was sent")
	}
	answered, err := b.Ask(t.ctx, t.identity(0), nil)
	if err != nil {
		return "", err
	}
	openA, err := await[wire.CircuitOpen](t.ctx, a)
	if err != nil {
		return "", err
	}
	openB, err := await[wire.CircuitOpen](t.ctx, b)
	if err != nil {
		return "", err
	}
	if openA.RequestID != asked || openB.RequestID != answered || openA.Circuit != openB.Circuit {
		return "", errors.New("the circuit does not fit the requests")
	}
	t.circuit = openA.Circuit
	return "A knocked, B asked back, a circuit is open", nil
}

// steady is the size of a steady message: 1,299 bytes on a TLS stream.
const steady = 1226

func (t *trial) message(from, to int) (string, error) {
	payload := bytes.Repeat([]byte{byte('A' + from)}, steady)
	sent := time.Now()
	id, err := t.sessions[from].Send(t.ctx, t.circuit, payload)
	if err != nil {
		return "", err
	}
	ack, err := await[wire.MessageAck](t.ctx, t.sessions[from])
	if err != nil {
		return "", err
	}
	got, err := await[wire.Message](t.ctx, t.sessions[to])
	if err != nil {
		return "", err
	}
	took := time.Since(sent)
	if ack.ID != id || got.ID != id || got.Circuit != t.circuit || !bytes.Equal(got.Payload, payload) {
		return "", errors.New("the message that came is not the one that was sent")
	}
	if err := t.sessions[to].Ack(t.ctx, id); err != nil {
		return "", err
	}
	return fmt.Sprintf("%d bytes, acknowledged and delivered in %v", len(payload), took.Round(10*time.Microsecond)), nil
}

func (t *trial) leave() (string, error) {
	if err := t.sessions[0].Leave(t.ctx, t.circuit); err != nil {
		return "", err
	}
	closed, err := await[wire.CircuitClosed](t.ctx, t.sessions[1])
	if err != nil {
		return "", err
	}
	if closed.Circuit != t.circuit || closed.Reason != wire.EndedClosed {
		return "", errors.New("another circuit was closed")
	}
	return "A closed the circuit and B was told", nil
}

// await returns the next frame, which must be an F.
func await[F wire.Frame](ctx context.Context, s *Session) (F, error) {
	var want F
	f, err := s.Receive(ctx)
	if err != nil {
		return want, fmt.Errorf("waiting for %v: %w", want.Type(), err)
	}
	switch f := f.(type) {
	case F:
		return f, nil
	case wire.Error:
		return want, &RefusedError{f}
	case wire.RateLimited:
		return want, fmt.Errorf("the relay refused %v for %v; it may be sent again after %d s", f.Frame, f.Limit, f.RetryAfterSecs)
	default:
		return want, fmt.Errorf("%v came in place of %v", f.Type(), want.Type())
	}
}

// validPort reports whether a URL's port is one, or left out.
func validPort(s string) bool {
	_, err := strconv.ParseUint(s, 10, 16)
	return s == "" || err == nil
}

var errURL = errors.New("is not the URL of a relay")

// advice says what to look at after err, as far as it shows that.
func advice(err error) string {
	if e, ok := errors.AsType[*UpgradeError](err); ok {
		if strings.Contains(e.Answer, "TLS") {
			return "TLS is spoken there; try wss:// in place of ws://."
		}
		if e.Status == 404 {
			return "The path of a relay is " + wire.Path + "; is it in the URL, and is a relay behind that address?"
		}
		return "Something that is not the relay may have answered: look at the front end's upstream, and whether the relay expects a PROXY header (relay.proxy_protocol) from it."
	}
	if e, ok := errors.AsType[*RefusedError](err); ok && e.Refusal.Fault == wire.FaultBinding {
		return "The front end must send the channel binding (channel_binding among the proxy_tlvs of its upstream, of the type that the relay's channel_binding_tlv names), or the relay be told require_channel_binding: false."
	}
	if _, ok := errors.AsType[x509.UnknownAuthorityError](err); ok {
		return "The certificate is not from a known authority; --insecure accepts a certificate of the edge's own making."
	}
	if _, ok := errors.AsType[x509.HostnameError](err); ok {
		return "The certificate is for another name; use the name that it is for, or --insecure."
	}
	if _, ok := errors.AsType[tls.RecordHeaderError](err); ok {
		return "No TLS is spoken there; try ws:// in place of wss://."
	}
	if _, ok := errors.AsType[*net.DNSError](err); ok {
		return "The name does not resolve."
	}
	switch {
	case errors.Is(err, errURL):
		return "The URL begins with ws:// or wss:// and names the path " + wire.Path + ", as in wss://relay.example.org" + wire.Path + "."
	case errors.Is(err, errNoExporter):
		return "Connect by wss:// through the front end, with TLS 1.3."
	case errors.Is(err, syscall.ECONNREFUSED):
		return "Nothing listens there: does the edge (or the relay) run, and on that port?"
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded):
		return "No answer in time: a firewall, or an upstream that does not answer; --timeout gives it longer."
	case websocket.CloseStatus(err) != -1:
		return "The relay closed the session; the reason stands above and in its rejections_total metric."
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return "The connection was closed without a word: over a connection cap, no relay behind the front end, or one that waits for a PROXY header which does not come (or does not expect the one that came)."
	}
	return ""
}

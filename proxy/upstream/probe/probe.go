// Package probe finds out from outside whether a relay takes a PROXY header. It
// connects like an edge would, with a header of each kind and without one, and
// compares what the relay does with what it does to a control: the same header
// with one byte changed, which nobody takes for one. A relay that treats both
// alike read neither; one that shuts out the control and stays with the header,
// or answers to it, took it. Greetings and error texts need not be understood
// for that.
//
// It does no more than seven connections a round, at most two rounds, each
// connection in a time limit of its own and 16 KiB of answer.
package probe

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"time"

	"relayedge/internal/hostport"
	"relayedge/internal/proxyheader"
)

// maxAnswer bounds what is read of a relay on one connection, in bytes.
const maxAnswer = 16 << 10

// HTTPRequest is what is sent behind the header in a second round, if the relay
// did not speak by itself and nothing else is to be sent.
const HTTPRequest = "GET / HTTP/1.1\r\nHost: relay\r\nConnection: close\r\n\r\n"

// Verdict is what a relay does with a kind of header.
type Verdict string

const (
	Takes   Verdict = "takes it"
	Refuses Verdict = "does not take it"
	Unclear Verdict = "cannot tell"
)

// Outcome is what a relay did on one connection.
type Outcome struct {
	Answer []byte // the first of it
	Ended  string // closed, reset, or nothing while it stayed open
	Err    error  // of the connect or of sending; nothing else is known then
}

// Report is what a round has found.
type Report struct {
	Sent []byte // behind the header

	Bare, V2, Local, V1 Outcome // with no header, PROXY v2, LOCAL of v2, and v1
	control2, controlL  Outcome
	control1            Outcome
}

// header is one kind of header with its control.
type header struct {
	bytes            []byte
	outcome, control *Outcome
}

// Run probes the target, sending send behind each header; if it is empty and
// says too little, an HTTP request in a second round. Each connection gets wait,
// for the connect and then for the answer. The error is that of a target that
// cannot be connected to.
func Run(ctx context.Context, target hostport.Target, send []byte, wait time.Duration) (*Report, error) {
	return run(ctx, connector(target, wait), send, wait)
}

// connector connects to the target within wait.
func connector(target hostport.Target, wait time.Duration) connect {
	dialer := net.Dialer{Timeout: wait}
	return func(ctx context.Context) (net.Conn, error) {
		return dialer.DialContext(ctx, target.Network, target.Address)
	}
}

type connect func(context.Context) (net.Conn, error)

func run(ctx context.Context, to connect, send []byte, wait time.Duration) (*Report, error) {
	r := round(ctx, to, send, wait)
	if r.Bare.Err != nil && r.V2.Err != nil {
		return nil, r.Bare.Err
	}
	if len(send) > 0 || r.V2Verdict() != Unclear {
		return r, nil
	}
	if second := round(ctx, to, []byte(HTTPRequest), wait); second.V2Verdict() != Unclear || second.V1Verdict() != Unclear {
		return second, nil
	}
	return r, nil
}

func round(ctx context.Context, to connect, send []byte, wait time.Duration) *Report {
	r := &Report{Sent: send}
	// Documentation addresses: what the relay logs points at nobody.
	h := proxyheader.Header{Source: netip.MustParseAddrPort("192.0.2.1:51000"), Destination: netip.MustParseAddrPort("198.51.100.1:443")}
	v2, _ := proxyheader.AppendV2(nil, h, false) // too short to fail
	local, _ := proxyheader.AppendV2(nil, proxyheader.Header{Local: true}, false)
	tries := []header{
		{nil, &r.Bare, nil},
		{v2, &r.V2, &r.control2},
		{local, &r.Local, &r.controlL},
		{proxyheader.AppendV1(nil, h), &r.V1, &r.control1},
	}
	var all sync.WaitGroup
	for _, t := range tries {
		all.Go(func() { *t.outcome = try(ctx, to, append(bytes.Clone(t.bytes), send...), wait) })
		if t.control != nil {
			all.Go(func() { *t.control = try(ctx, to, append(spoiled(t.bytes), send...), wait) })
		}
	}
	all.Wait()
	return r
}

// spoiled is a header with the fifth byte changed: no header any more, and to a
// reader of lines the same number of lines.
func spoiled(h []byte) []byte {
	h = bytes.Clone(h)
	h[4]++
	return h
}

// try sends what is given on a connection of its own and looks what happens.
func try(ctx context.Context, to connect, send []byte, wait time.Duration) Outcome {
	conn, err := to(ctx)
	if err != nil {
		return Outcome{Err: err}
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	conn.SetDeadline(time.Now().Add(wait))
	if len(send) > 0 {
		conn.Write(send) // a relay that has closed already is seen by the read
	}
	answer, err := io.ReadAll(io.LimitReader(conn, maxAnswer))
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded), err == nil && len(answer) == maxAnswer:
		return Outcome{Answer: answer}
	case err == nil:
		return Outcome{Answer: answer, Ended: "closed"}
	case ctx.Err() != nil:
		return Outcome{Err: ctx.Err()}
	}
	return Outcome{Answer: answer, Ended: "reset"}
}

// V2Verdict is what the relay does with a PROXY v2 header.
func (r *Report) V2Verdict() Verdict { return judge(r.V2, r.control2, r.Bare) }

// LocalVerdict is what it does with a LOCAL one, as health checks send.
func (r *Report) LocalVerdict() Verdict { return judge(r.Local, r.controlL, r.Bare) }

// V1Verdict is what it does with a PROXY v1 header.
func (r *Report) V1Verdict() Verdict { return judge(r.V1, r.control1, r.Bare) }

// BareVerdict is whether the relay serves a connection without a header.
func (r *Report) BareVerdict() Verdict {
	switch {
	case r.Bare.Err != nil:
		return Unclear
	case r.Bare.shutOut():
		return Refuses
	case len(r.Bare.Answer) > 0, r.V2Verdict() == Refuses && r.V1Verdict() == Refuses:
		return Takes
	}
	return Unclear
}

// judge holds what a header led to against its control, and against a
// connection without either.
func judge(got, control, bare Outcome) Verdict {
	switch {
	case got.Err != nil || control.Err != nil:
		return Unclear
	case bytes.Contains(got.Answer, []byte("PROXY TCP4")), bytes.Contains(got.Answer, []byte("\r\n\r\n\x00\r\nQUIT\n")):
		return Refuses // it comes back as what it is not: payload
	case got.shutOut():
		return Refuses
	case !got.alike(control):
		return Takes
	case got.alike(bare):
		return Unclear // the relay takes no notice of anything
	}
	return Refuses
}

// shutOut: the connection was ended without a word.
func (o Outcome) shutOut() bool { return o.Ended != "" && len(o.Answer) == 0 }

// alike reports whether a relay did the same on two connections, as far as that
// can be said of answers with times and numbers in them. However it ended, an
// end is an end: unread bytes make a reset of a close.
func (o Outcome) alike(p Outcome) bool {
	return o.shape() == p.shape() && (o.Ended == "") == (p.Ended == "")
}

// shape is what an answer is recognised by: how each of its first lines begins.
func (o Outcome) shape() string {
	var shape strings.Builder
	for i, line := range strings.SplitN(string(o.Answer), "\n", 9) {
		if i == 8 {
			break
		}
		words := 1
		if strings.HasPrefix(line, "HTTP/") {
			words = 2
		}
		for _, word := range strings.Fields(line)[:min(words, len(strings.Fields(line)))] {
			if strings.ContainsFunc(word, func(r rune) bool { return r < ' ' || r > '~' }) {
				word = "binary"
			}
			shape.WriteString(word)
			shape.WriteByte(' ')
		}
		shape.WriteByte('\n')
	}
	return shape.String()
}

package client

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"testing"

	"github.com/coder/websocket"

	"relayedge/relaycore/wire"
)

// What a loop may go on after, a row each; the close codes are those of
// docs/protocol.md and of RFC 6455.
func TestPassing(t *testing.T) {
	closed := func(code websocket.StatusCode, reason string) error {
		return fmt.Errorf("reading: %w", websocket.CloseError{Code: code, Reason: reason})
	}
	for _, row := range []struct {
		err  error
		want bool
	}{
		{nil, false},
		{closed(1000, ""), false},
		{closed(1001, "drain"), true},
		{closed(1002, ""), false},
		{closed(1003, ""), false},
		{closed(1005, ""), false},
		{closed(1007, ""), false},
		{closed(1008, "idle_timeout"), true},
		{closed(1008, "identification_timeout"), true},
		{closed(1008, "auth_rate"), true},
		{closed(1008, "unknown_frame"), false},
		{closed(1008, ""), false},
		{closed(1009, "oversized_frame"), false},
		{closed(1010, ""), false},
		{closed(1011, ""), true},
		{closed(1012, ""), true},
		{closed(1013, ""), true},
		{closed(4001, ""), false},
		{closed(4999, "auth_rate"), false},
		{&UpgradeError{Status: 404}, false},
		{&UpgradeError{Status: 400}, false},
		{&UpgradeError{Status: 429}, true},
		{&UpgradeError{Status: 503}, true},
		{&StatusError{Status: 429}, true},
		{&StatusError{Status: 500}, true},
		{&StatusError{Status: 499}, false},
		{&StatusError{Status: 600}, false},
		{&RefusedError{wire.Error{}}, false},
		{wire.ErrMalformed, false},
		{wire.ErrUnknownType, false},
		{fmt.Errorf("x %w", errURL), false},
		{errNoExporter, false},
		{&finalError{io.EOF}, false},
		{&tls.CertificateVerificationError{Err: errors.New("expired")}, false},
		{tls.RecordHeaderError{}, false},
		{context.Canceled, false},
		{context.DeadlineExceeded, true},
		{io.EOF, true},
		{&net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}, true},
		{&net.DNSError{IsTimeout: true}, true},
	} {
		if Passing(row.err) != row.want {
			t.Errorf("%v: %v", row.err, !row.want)
		}
	}
}

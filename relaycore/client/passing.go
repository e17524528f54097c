package client

import (
	"context"
	"crypto/tls"
	"errors"
	"net/http"
	"slices"

	"github.com/coder/websocket"

	"relayedge/relaycore/wire"
)

// finalError is a failure that another attempt would meet again.
type finalError struct{ error }

func (e *finalError) Unwrap() error { return e.error }

// passingCodes are the close codes after which another session may fare better.
// After any other the client would do again what it was closed for: what was too
// long stays too long, and a device that takes its identity back from another of
// the same owner loses it to that one again.
var passingCodes = []websocket.StatusCode{
	websocket.StatusGoingAway, websocket.StatusInternalError,
	websocket.StatusServiceRestart, websocket.StatusTryAgainLater,
}

// passingReasons are the reasons of 1008 for which that is true too.
var passingReasons = []string{"idle_timeout", "identification_timeout", authRate}

// authRate is the reason of a session that proved itself too often.
const authRate = "auth_rate"

// Passing reports whether an error of this package is of the moment, so that the
// same call or another session may fare better after a wait: an answer of 429 or
// 5xx, a lost connection, a relay that shuts down. A loop that goes on after any
// other sends the same thing to the same end for ever.
func Passing(err error) bool {
	if err == nil || errors.Is(err, context.Canceled) || errors.Is(err, errURL) || errors.Is(err, errNoExporter) ||
		errors.Is(err, wire.ErrMalformed) || errors.Is(err, wire.ErrUnknownType) {
		return false
	}
	if _, ok := errors.AsType[*finalError](err); ok {
		return false
	}
	if _, ok := errors.AsType[*RefusedError](err); ok {
		return false
	}
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return false
	}
	if _, ok := errors.AsType[tls.RecordHeaderError](err); ok {
		return false
	}
	if e, ok := errors.AsType[*StatusError](err); ok {
		return passingStatus(e.Status)
	}
	if e, ok := errors.AsType[*UpgradeError](err); ok {
		return passingStatus(e.Status)
	}
	if e, ok := errors.AsType[websocket.CloseError](err); ok {
		return slices.Contains(passingCodes, e.Code) ||
			e.Code == websocket.StatusPolicyViolation && slices.Contains(passingReasons, e.Reason)
	}
	return true
}

func passingStatus(status int) bool {
	return status == http.StatusTooManyRequests || status/100 == 5
}

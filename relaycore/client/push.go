package client

import (
	"context"
	"net/http"

	"relayedge/relaycore/wire"
)

// pushRequest is the body of each request about a push endpoint.
type pushRequest struct {
	Identity  wire.Identity `json:"identity"`
	Endpoint  string        `json:"endpoint,omitempty"`
	SentAt    string        `json:"sent_at"`
	Signature string        `json:"signature"`
}

// SetPush leaves an endpoint, an https URL, which the relay calls when a message
// is queued for the identity while it is away. It takes the place of an earlier
// one, and is kept for a while only: it is set anew now and then. The answer is
// the registration's name.
func (m *Mail) SetPush(ctx context.Context, endpoint string) (registration string, err error) {
	sentAt := moment()
	var answer wire.PushRegistration
	err = m.write(ctx, http.MethodPut, "/push", "", pushRequest{
		m.identity, endpoint, sentAt, m.sign(wire.PushText(m.identity, endpoint, sentAt)),
	}, &answer)
	return answer.Registration, err
}

// ClearPush takes the endpoint back.
func (m *Mail) ClearPush(ctx context.Context) error {
	sentAt := moment()
	return m.write(ctx, http.MethodDelete, "/push", "", pushRequest{
		m.identity, "", sentAt, m.sign(wire.PushOffText(m.identity, sentAt)),
	}, nil)
}

// TestPush has the relay call the endpoint and returns what came of it: woken,
// or gone, refused, failed or forbidden. Where the budget of the hour is spent
// the error is a *StatusError with the budget's numbers, at once: it does not
// pass within a retry.
func (m *Mail) TestPush(ctx context.Context) (outcome string, err error) {
	sentAt := moment()
	var answer wire.PushTest
	once := *m
	once.patience.retries = 0
	err = once.write(ctx, http.MethodPost, "/push/test", "", pushRequest{
		m.identity, "", sentAt, m.sign(wire.PushTestText(m.identity, sentAt)),
	}, &answer)
	return answer.Outcome, err
}

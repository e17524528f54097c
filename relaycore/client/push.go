package client

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"

	"relayedge/relaycore/wire"
)

// pushRequest is the body of each request about a push endpoint.
type pushRequest struct {
	Identity  string `json:"identity"`
	Endpoint  string `json:"endpoint,omitempty"`
	SentAt    string `json:"sent_at"`
	Signature string `json:"signature"`
}

// SetPush leaves an endpoint, an https URL, which the relay calls when a message
// is queued for the identity while it is away. It takes the place of an earlier
// one, and is kept for a while only: it is set anew now and then. The answer is
// the registration's name.
func (m *Mail) SetPush(ctx context.Context, endpoint string) (registration string, err error) {
	sentAt := moment()
	var answer struct {
		Registration string `json:"registration"`
	}
	err = m.push(ctx, http.MethodPut, "/push", pushRequest{
		m.identity.String(), endpoint, sentAt, m.sign(wire.PushText(m.identity, endpoint, sentAt)),
	}, &answer)
	return answer.Registration, err
}

// ClearPush takes the endpoint back.
func (m *Mail) ClearPush(ctx context.Context) error {
	sentAt := moment()
	return m.push(ctx, http.MethodDelete, "/push", pushRequest{
		m.identity.String(), "", sentAt, m.sign(wire.PushOffText(m.identity, sentAt)),
	}, &struct{}{})
}

// TestPush has the relay call the endpoint and returns what came of it: woken,
// or gone, refused, failed or forbidden. Where the budget of the hour is spent
// the error is a *StatusError with the budget's numbers, at once: it does not
// pass within a retry.
func (m *Mail) TestPush(ctx context.Context) (outcome string, err error) {
	sentAt := moment()
	var answer struct {
		Outcome string `json:"outcome"`
	}
	once := *m
	once.patience.retries = 0
	err = once.push(ctx, http.MethodPost, "/push/test", pushRequest{
		m.identity.String(), "", sentAt, m.sign(wire.PushTestText(m.identity, sentAt)),
	}, &answer)
	return answer.Outcome, err
}

func (m *Mail) push(ctx context.Context, method, path string, q pushRequest, answer any) error {
	body, err := m.write(ctx, method, path, "", q)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(body, answer); err != nil {
		return fmt.Errorf("%w: %w", errAnswer, err)
	}
	return nil
}

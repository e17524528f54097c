package control

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync/atomic"
)

// Unreachable says that nothing could be asked at a socket, and what to do.
type Unreachable struct {
	Socket string
	Cause  error
}

func (e *Unreachable) Error() string {
	return fmt.Sprintf("nothing answers at %s: %v", e.Socket, e.Cause)
}

func (e *Unreachable) Unwrap() error { return e.Cause }

// Refused is the error that was answered.
type Refused struct{ Text string }

func (e *Refused) Error() string { return e.Text }

// maxAnswerBytes is how much of an answer is read.
const maxAnswerBytes = 16 << 20

// Ask asks the process at a socket and reads its answer into a value. Its error
// is an *Unreachable, a *Refused, or that of a process that broke off.
func Ask(ctx context.Context, socket, method, path string, into any) error {
	var dialed atomic.Bool
	transport := &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			conn, err := new(net.Dialer).DialContext(ctx, "unix", socket)
			dialed.Store(err == nil)
			return conn, err
		},
	}
	request, err := http.NewRequestWithContext(ctx, method, "http://control"+path, nil)
	if err != nil {
		return err
	}
	response, err := transport.RoundTrip(request)
	if err != nil && !dialed.Load() {
		if op, ok := errors.AsType[*net.OpError](err); ok {
			err = op.Err // the rest is said by Unreachable
		}
		return &Unreachable{socket, err}
	}
	if err != nil {
		return fmt.Errorf("the process at %s broke off before it answered: %w", socket, err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, maxAnswerBytes))
	if err != nil {
		return fmt.Errorf("the process at %s broke off in its answer: %w", socket, err)
	}
	if response.StatusCode != http.StatusOK {
		var why failure
		json.Unmarshal(body, &why) // of what is no JSON, the status is all there is to say
		return &Refused{cmp.Or(why.Error, "the process at "+socket+" answers with the status "+response.Status)}
	}
	if err := json.Unmarshal(body, into); err != nil {
		return fmt.Errorf("the process at %s answers with something else: %w", socket, err)
	}
	return nil
}

package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"time"
)

const (
	// maxRetries is how often a call is sent again where its caller does not say.
	maxRetries = 3
	// longestWait is how long one wait lasts at most, whatever the relay asks for:
	// a front end that answers Retry-After: 86400 must not park a call for a day.
	longestWait = time.Minute
	// longestBackoff is the longest wait that the client chooses itself, jitter aside.
	longestBackoff = 8 * time.Second
	// maxFault is how much of an answer other than 2xx is read for what it says;
	// maxDrained how much is then read of any answer for the sake of its connection.
	maxFault   = 16 << 10
	maxDrained = 64 << 10
)

// patience sends a request until it is answered for good. Its zero value sends
// it once, for as long as it takes.
type patience struct {
	client  *http.Client
	retries int           // after the first attempt
	attempt time.Duration // one attempt, its answer included; 0: no limit
}

// errTooLong means that an answer had more bytes than such an answer can have.
var errTooLong = errors.New("the answer is longer than the relay's answers are")

// do sends what build makes, again after 429, after 5xx and where no complete
// answer came, and returns the body of a 2xx answer, of at most most bytes. What
// is sent must have one effect however often it comes. build is called for every
// attempt, with the attempt's context.
func (p *patience) do(ctx context.Context, most int64, build func(context.Context) (*http.Request, error)) ([]byte, error) {
	return p.again(ctx, func(ctx context.Context) ([]byte, error) { return p.once(ctx, most, build) })
}

// again makes attempts until one succeeds or fails for good.
func (p *patience) again(ctx context.Context, attempt func(context.Context) ([]byte, error)) ([]byte, error) {
	for n := 0; ; n++ {
		body, err := p.bounded(ctx, attempt)
		if err == nil || n >= p.retries || !Passing(err) {
			return body, err
		}
		if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
			return nil, err // the context ended the attempt itself
		}
		if cause := pause(ctx, jittered(delay(err, n))); cause != nil {
			return nil, fmt.Errorf("%w, after: %w", cause, err)
		}
	}
}

// pause waits, for as long as ctx lasts; it returns why ctx has ended.
func pause(ctx context.Context, wait time.Duration) error {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// bounded gives one attempt its time.
func (p *patience) bounded(ctx context.Context, attempt func(context.Context) ([]byte, error)) ([]byte, error) {
	if p.attempt > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, p.attempt)
		defer cancel()
	}
	return attempt(ctx)
}

// once sends one request. Its answer's body is read, drained and closed by the
// time it returns, so that nothing of the connection is held over a wait.
func (p *patience) once(ctx context.Context, most int64, build func(context.Context) (*http.Request, error)) ([]byte, error) {
	r, err := build(ctx)
	if err != nil {
		return nil, &finalError{err}
	}
	answer, err := p.client.Do(r)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	ok := answer.StatusCode/100 == 2
	if !ok {
		most = maxFault
	}
	body, err := io.ReadAll(io.LimitReader(answer.Body, most+1))
	if !ok {
		// What a refusal says helps, but its status is what counts.
		io.CopyN(io.Discard, answer.Body, maxDrained)
		return nil, newStatusError(answer, body, time.Now())
	}
	if err != nil {
		return nil, err
	}
	if int64(len(body)) > most {
		return nil, &finalError{errTooLong}
	}
	return body, nil
}

// delay is how long to wait at least after the attempt n, the first being 0. What
// the relay asks for counts where 429 or 503 says so; it means nothing elsewhere.
func delay(err error, n int) time.Duration {
	if status, ok := errors.AsType[*StatusError](err); ok && status.RetryAfter > 0 &&
		(status.Status == http.StatusTooManyRequests || status.Status == http.StatusServiceUnavailable) {
		return min(status.RetryAfter, longestWait)
	}
	return min(time.Second<<min(n, 10), longestBackoff)
}

// jittered adds up to a quarter to a wait, never past the longest, so that those
// who were refused together do not come back together.
func jittered(wait time.Duration) time.Duration {
	return min(wait+mathrand.N(wait/4+1), longestWait)
}

// retryAfter reads a Retry-After header: whole seconds, or a date, which is
// counted from the relay's own clock where the answer shows it. Whatever else it
// may be (fractions, 0, something negative, several of them) is none: 0.
func retryAfter(h http.Header, now time.Time) time.Duration {
	values := h.Values("Retry-After")
	if len(values) != 1 {
		return 0
	}
	text := strings.TrimSpace(values[0])
	if strings.Trim(text, "0123456789") == "" {
		n, _ := strconv.ParseUint(text, 10, 31) // what does not fit is the most that does
		return time.Duration(n) * time.Second
	}
	at, err := http.ParseTime(text)
	if err != nil {
		return 0
	}
	if sent, err := http.ParseTime(h.Get("Date")); err == nil {
		now = sent
	}
	return max(0, at.Sub(now))
}

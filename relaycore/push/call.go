package push

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"syscall"
	"time"
)

const (
	// maxAnswer is how much of an answer is read so that its connection can be used
	// again; what it says means nothing to us.
	maxAnswer = 4 << 10
	// retention is how long the service keeps a wake-up for a device that it cannot
	// reach, in seconds. Later ones take its place (RFC 8030, sections 5.2 and 5.4).
	retention = "86400"
	topic     = "relaycore"
	// The service's wish not to be called is heeded for this long: by default, and
	// at most.
	quietDefault = time.Minute
	quietMost    = time.Hour
)

// newTransport returns what makes the calls. Whom it may call is asked of each
// address that it is about to connect to, after names were resolved: a name that
// stands for another address the next time gains nothing by it.
func newTransport(permitted func(netip.AddrPort) bool) *http.Transport {
	dialer := &net.Dialer{
		KeepAlive: -1,
		Control: func(_, address string, _ syscall.RawConn) error {
			addr, err := netip.ParseAddrPort(address)
			if err != nil || !permitted(addr) {
				return errNotPermitted
			}
			return nil
		},
	}
	return &http.Transport{
		Proxy:                  nil, // a proxy would make the connection past our check
		DialContext:            dialer.DialContext,
		TLSClientConfig:        &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}},
		MaxIdleConns:           64,
		MaxIdleConnsPerHost:    2,
		IdleConnTimeout:        time.Minute,
		MaxResponseHeaderBytes: 16 << 10,
		DisableCompression:     true,
	}
}

// call asks the budget and calls the endpoint. quiet is how long the service
// wants to be left alone.
func (w *Waker) call(ctx context.Context, r *registration) (result Result, quiet time.Duration) {
	result.Budget = w.budget.Take(ctx, r.budget, time.Now())
	if !result.Budget.Allowed {
		result.Outcome = Spent
		return result, 0
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, r.endpoint, http.NoBody)
	if err != nil {
		result.Outcome = Failed
		return result, 0
	}
	request.Header = http.Header{"Ttl": {retention}, "Topic": {topic}, "User-Agent": {"relaycore"}}
	answer, err := w.client.Do(request)
	if err != nil {
		// The error tells the endpoint, so it goes no further.
		result.Outcome = Failed
		if errors.Is(err, errNotPermitted) {
			result.Outcome = Forbidden
		}
		return result, 0
	}
	defer answer.Body.Close()
	io.CopyN(io.Discard, answer.Body, maxAnswer)
	switch {
	case answer.StatusCode/100 == 2:
		result.Outcome = Woken
	case answer.StatusCode == http.StatusNotFound || answer.StatusCode == http.StatusGone:
		result.Outcome = Gone
	case answer.StatusCode == http.StatusTooManyRequests:
		result.Outcome, quiet = Refused, quietDefault
		// What does not fit is the most that does; what is no number is 0.
		if n, _ := strconv.ParseUint(answer.Header.Get("Retry-After"), 10, 31); n > 0 {
			quiet = min(time.Duration(n)*time.Second, quietMost)
		}
	default:
		result.Outcome = Refused
	}
	return result, quiet
}

package client

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"
)

// upgrader makes one HTTP request on one connection of its own. http.Transport
// would do, but hides what the session needs: the TLS session to bind a proof to,
// and an answer that comes before the request is sent, as a front end's refusal does.
type upgrader struct {
	dial func(ctx context.Context, network, addr string) (net.Conn, error)
	tls  *tls.Config // nil: the defaults

	state *tls.ConnectionState // of the connection that was made; nil without TLS
}

// maxRefusal is how much of a body is read from an answer that is no upgrade.
const maxRefusal = 4 << 10

func (u *upgrader) RoundTrip(r *http.Request) (*http.Response, error) {
	ctx := r.Context()
	nc, err := u.connect(ctx, r)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { nc.SetDeadline(time.Unix(1, 0)) })
	response, err := exchange(nc, r)
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		nc.Close()
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return nil, err
	}
	if response.StatusCode != http.StatusSwitchingProtocols {
		nc.Close()
	}
	return response, nil
}

// connect dials the request's host, by TLS if its scheme is https.
func (u *upgrader) connect(ctx context.Context, r *http.Request) (net.Conn, error) {
	port := r.URL.Port()
	secure := r.URL.Scheme == "https"
	if port == "" {
		port = map[bool]string{false: "80", true: "443"}[secure]
	}
	nc, err := u.dial(ctx, "tcp", net.JoinHostPort(r.URL.Hostname(), port))
	if err != nil || !secure {
		return nc, err
	}
	cfg := &tls.Config{}
	if u.tls != nil {
		cfg = u.tls.Clone()
	}
	cfg.NextProtos = []string{"http/1.1"}
	if cfg.ServerName == "" {
		cfg.ServerName = r.URL.Hostname()
	}
	tc := tls.Client(nc, cfg)
	if err := tc.HandshakeContext(ctx); err != nil {
		nc.Close()
		return nil, fmt.Errorf("TLS handshake: %w", err)
	}
	u.state = new(tc.ConnectionState())
	return tc, nil
}

// exchange writes the request and reads the answer, even where the request could not be written.
func exchange(nc net.Conn, r *http.Request) (*http.Response, error) {
	writeErr := r.Write(nc)
	read := bufio.NewReader(nc)
	response, err := http.ReadResponse(read, r)
	if err != nil {
		if writeErr != nil {
			err = writeErr
		}
		return nil, err
	}
	if response.StatusCode == http.StatusSwitchingProtocols {
		response.Body = &upgraded{Reader: read, conn: nc}
		return response, nil
	}
	body, _ := io.ReadAll(io.LimitReader(response.Body, maxRefusal))
	response.Body = io.NopCloser(bytes.NewReader(body))
	return response, nil
}

// upgraded is the connection behind a 101.
type upgraded struct {
	io.Reader // what was read ahead comes first
	conn      net.Conn
}

func (u *upgraded) Write(b []byte) (int, error) { return u.conn.Write(b) }
func (u *upgraded) Close() error                { return u.conn.Close() }

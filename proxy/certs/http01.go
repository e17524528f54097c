package certs

import (
	"context"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"strings"
	"time"

	"relayedge/internal/places"
)

// Bounds of the plain HTTP side. A connection serves one request.
const (
	plainTimeout     = 5 * time.Second
	plainHeaderBytes = 8 << 10
	plainConnections = 32
)

const challengePath = "/.well-known/acme-challenge/"

// HTTPHandler answers http-01 and redirects everything else to https, at its
// default port: what a client of port 80 sees is the machine's public side.
func (s *Store) HTTPHandler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host := r.Host
		if h, _, err := net.SplitHostPort(host); err == nil {
			host = h
		}
		name, ok := canonicalName(host)
		if !ok {
			http.Error(w, "The Host is no name.", http.StatusBadRequest)
			return
		}
		if token, ok := strings.CutPrefix(r.URL.Path, challengePath); ok && (r.Method == http.MethodGet || r.Method == http.MethodHead) {
			if answer := s.challenges.keyAuthorization(name, token); answer != "" {
				w.Header().Set("Content-Type", "application/octet-stream")
				io.WriteString(w, answer)
				return
			}
		}
		code := http.StatusPermanentRedirect // keeps the method
		if r.Method == http.MethodGet || r.Method == http.MethodHead {
			code = http.StatusMovedPermanently
		}
		path := r.URL.RequestURI()
		if !strings.HasPrefix(path, "/") {
			path = "/" // OPTIONS *
		}
		w.Header().Set("Location", "https://"+name+path)
		w.WriteHeader(code)
	})
}

// ServeHTTP01 serves HTTPHandler on ln until ctx ends, and closes it. At most 32
// connections are open: the oldest that is silent makes way for a newcomer, so that
// those who hold connections open do not keep the CA out.
func (s *Store) ServeHTTP01(ctx context.Context, ln net.Listener) error {
	server := &http.Server{
		Handler:           s.HTTPHandler(),
		ReadHeaderTimeout: plainTimeout,
		ReadTimeout:       plainTimeout,
		WriteTimeout:      plainTimeout,
		MaxHeaderBytes:    plainHeaderBytes - 4096,    // net/http adds its buffer to it
		ErrorLog:          log.New(io.Discard, "", 0), // its lines hold client addresses
	}
	server.SetKeepAlivesEnabled(false)
	stop := context.AfterFunc(ctx, func() { server.Close() })
	defer stop()
	err := places.Serve(server, ln, places.Config{Most: plainConnections})
	if ctx.Err() != nil || errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

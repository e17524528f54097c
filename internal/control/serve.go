package control

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"runtime/debug"
	"time"

	"relayedge/internal/places"
)

// Bounds of a connection.
const (
	maxConnections = 8
	maxHeaderBytes = 4 << 10
	maxBodyBytes   = 4 << 10
	readTime       = 5 * time.Second  // for the whole request
	writeTime      = 10 * time.Second // for the whole answer
	endTime        = 2 * time.Second  // for what is being answered at the end
)

// Answers are what a process answers, by method and path: "POST /reload". What
// a function returns is sent as JSON, its error as text.
type Answers map[string]func(ctx context.Context) (any, error)

// failure is the answer where there is an error.
type failure struct {
	Error string `json:"error"`
}

// Serve answers on ln, which it owns, until ctx ends; then it returns nil. A
// panic ends its request alone.
func Serve(ctx context.Context, ln net.Listener, answers Answers, told *slog.Logger) error {
	mux := http.NewServeMux()
	for pattern, answer := range answers {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			defer func() {
				if fault := recover(); fault != nil {
					told.Error("a request of the control socket panicked; only this request ends", "panic", fault, "stack", string(debug.Stack()))
					write(w, http.StatusInternalServerError, failure{"a fault of the program; its log has more"})
				}
			}()
			// A client that goes away must not leave half of what it asked for.
			value, err := answer(context.WithoutCancel(r.Context()))
			if err != nil {
				write(w, http.StatusConflict, failure{err.Error()})
				return
			}
			write(w, http.StatusOK, value)
		})
	}
	srv := &http.Server{
		Handler:           http.MaxBytesHandler(mux, maxBodyBytes),
		ReadHeaderTimeout: readTime,
		ReadTimeout:       readTime,
		MaxHeaderBytes:    maxHeaderBytes,
		ErrorLog:          log.New(io.Discard, "", 0),
	}
	srv.SetKeepAlivesEnabled(false)
	closed := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(closed)
		grace, cancel := context.WithTimeout(context.Background(), endTime)
		defer cancel()
		srv.Shutdown(grace)
	})
	err := places.Serve(srv, ln, places.Config{Most: maxConnections})
	if !stop() {
		<-closed
		err = nil
	}
	return errors.Join(err, srv.Close())
}

func write(w http.ResponseWriter, status int, value any) {
	// It is measured from here, since what is asked for may take its time.
	http.NewResponseController(w).SetWriteDeadline(time.Now().Add(writeTime))
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(value)
}

package telemetry

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"

	"relayedge/internal/places"
)

const (
	maxConnections    = 8 // one is kept for /metrics
	connectionTimeout = 30 * time.Second
	requestTimeout    = 5 * time.Second
	maxHeaderBytes    = 8 << 10
	// headerSlop is what net/http adds to its MaxHeaderBytes.
	headerSlop = 4 << 10
)

// Server is the metrics endpoint.
type Server struct {
	metrics http.Handler
	ready   func() error
	pages   map[string]http.Handler
	names   Names
	log     *slog.Logger
}

// Options are what a Server serves.
type Options struct {
	Groups []Group
	// Process adds the process_* and go_* families where true: process_* always, go_* only with GoRuntime.
	Process, GoRuntime bool
	// Ready answers /readyz: nil when the service accepts and can serve, else why not.
	Ready func() error
	// Pages are what stands beside the metrics, by its path. Each answers GET and HEAD
	// alone, within the connections that are not kept for /metrics, and to who asks
	// for one of Names.
	Pages map[string]http.Handler
	Names Names
	Log   *slog.Logger
}

// NewServer builds the endpoint; it fails on a family that Prometheus refuses.
func NewServer(o Options) (*Server, error) {
	registry := prometheus.NewPedanticRegistry()
	for _, g := range o.Groups {
		for _, f := range g.Families {
			c, err := newCollector(g.Namespace, f)
			if err != nil {
				return nil, err
			}
			if err := registry.Register(c); err != nil {
				return nil, fmt.Errorf("metric %q: %w", g.Namespace+"_"+f.Name, err)
			}
		}
	}
	if o.Process {
		registry.MustRegister(collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
		if o.GoRuntime {
			registry.MustRegister(collectors.NewGoCollector())
		}
	}
	s := &Server{ready: o.Ready, pages: o.Pages, names: o.Names, log: cmp.Or(o.Log, slog.New(slog.DiscardHandler))}
	if s.ready == nil {
		s.ready = func() error { return nil }
	}
	// A family that fails costs its own samples, not the others'.
	s.metrics = promhttp.HandlerFor(gatherer{registry, s.log}, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError})
	return s, nil
}

// gatherer logs what could not be gathered. promhttp's own log would add what
// could not be sent, with the client's address.
type gatherer struct {
	prometheus.Gatherer
	log *slog.Logger
}

func (g gatherer) Gather() ([]*dto.MetricFamily, error) {
	families, err := g.Gatherer.Gather()
	if err != nil {
		g.log.Warn("Metrics are incomplete", "error", err)
	}
	return families, err
}

// Serve serves on ln until ctx ends, then closes ln and every connection. It returns nil after ctx's end.
func (s *Server) Serve(ctx context.Context, ln net.Listener) error {
	srv := &http.Server{
		Handler: s,
		// For the body too, which nobody reads: net/http waits for it behind the answer.
		ReadTimeout:    requestTimeout,
		MaxHeaderBytes: maxHeaderBytes - headerSlop,
		// net/http writes the client's address into its log. What matters of it
		// is logged here without.
		ErrorLog: log.New(io.Discard, "", 0),
	}
	srv.SetKeepAlivesEnabled(false)
	stop := context.AfterFunc(ctx, func() { _ = srv.Close() })
	defer stop()
	err := places.Serve(srv, &faults{Listener: ln, log: s.log}, places.Config{
		Most: maxConnections,
		Time: connectionTimeout,
		Kept: func(r *http.Request) bool { return r.URL.Path == "/metrics" },
		Full: "All connections are in use; the last one is kept for /metrics.",
	})
	_ = srv.Close()
	if ctx.Err() != nil {
		return nil
	}
	return err
}

func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	defer func() {
		if p := recover(); p != nil {
			s.log.Error("Metrics endpoint panicked", "panic", p)
			http.Error(w, "internal error", http.StatusInternalServerError)
		}
	}()
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		http.Error(w, "Only GET and HEAD are answered here.", http.StatusMethodNotAllowed)
		return
	}
	switch r.URL.Path {
	case "/metrics":
		s.metrics.ServeHTTP(w, r)
	case "/healthz":
		answer(w, http.StatusOK, "ok")
	case "/readyz":
		if err := s.ready(); err != nil {
			answer(w, http.StatusServiceUnavailable, err.Error())
			return
		}
		answer(w, http.StatusOK, "ok")
	default:
		if page := s.pages[r.URL.Path]; page != nil {
			s.page(w, r, page)
			return
		}
		http.Error(w, s.whatIsHere(), http.StatusNotFound)
	}
}

func answer(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, text)
}

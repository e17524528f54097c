// Package telemetry serves the metrics of a process and the rules that the
// endpoint keeps: loopback unless allowed otherwise, at most 8 connections of
// which one is kept for /metrics, 5 s for a request's headers, 30 s for a
// connection in all. Packages describe what they count as [Family] values;
// Prometheus is known only here.
package telemetry

import (
	"context"
	"log/slog"
	"net"
)

// Kind is what a family measures.
type Kind int

const (
	Counter Kind = iota // only rises
	Gauge               // rises and falls
	Histogram
)

// Family is one metric family. Read is called at each scrape, from any
// goroutine, and emits one sample for each value of the label; a family without
// a label emits one sample with an empty value.
type Family struct {
	Name  string // without the namespace: "connections_total"
	Help  string
	Kind  Kind
	Label string // the only label, or empty
	Read  func(emit func(labelValue string, value float64))
	// ReadHistogram is used in place of Read for a Histogram: cumulative counts
	// by upper bound, the count of all observations and their sum.
	ReadHistogram func() (buckets map[float64]uint64, count uint64, sum float64)
}

// Group is a set of families under one namespace.
type Group struct {
	Namespace string
	Families  []Family
}

// Config is the metrics section of the policy.
type Config struct {
	Enabled     bool   `key:"enabled" default:"true" doc:"serve metrics"`
	BindAddr    string `key:"bind_addr" default:"127.0.0.1:9090" doc:"address of the metrics endpoint"`
	AllowPublic bool   `key:"allow_public" default:"false" doc:"allow a bind_addr that is not loopback; the endpoint has no authentication, so firewall it"`
	Namespace   string `key:"namespace" default:"relayedge" doc:"prefix of every metric name"`
}

// Server is the metrics endpoint.
type Server struct{}

// Options are what a Server serves.
type Options struct {
	Groups []Group
	// Process adds the process_* and go_* families where true: process_* always, go_* only with GoRuntime.
	Process, GoRuntime bool
	// Ready answers /readyz: nil when the service accepts and can serve, else why not.
	Ready func() error
	Log   *slog.Logger
}

// NewServer builds the endpoint; it fails on a family that Prometheus refuses.
func NewServer(o Options) (*Server, error) { panic("stub") }

// Serve serves on ln until ctx ends, then closes ln and every connection. It returns nil after ctx's end.
func (s *Server) Serve(ctx context.Context, ln net.Listener) error { panic("stub") }

package proxy

import (
	"sync/atomic"
	"time"

	"relayedge/admission"
	"relayedge/internal/telemetry"
)

// stats are the edge's counters. Everything in them is atomic.
type stats struct {
	rejected   map[Reason]*atomic.Uint64 // by reason; the maps themselves never change
	ended      map[Reason]*atomic.Uint64
	accepted   atomic.Uint64
	bytesIn    atomic.Uint64 // wire bytes from clients
	bytesOut   atomic.Uint64 // wire bytes to clients
	handshakes histogram
}

func newStats() *stats {
	return &stats{rejected: counters(refusals), ended: counters(ends)}
}

func counters(reasons []Reason) map[Reason]*atomic.Uint64 {
	m := make(map[Reason]*atomic.Uint64, len(reasons))
	for _, r := range reasons {
		m[r] = new(atomic.Uint64)
	}
	return m
}

// refuse counts a refusal or a forced end.
func (s *stats) refuse(r Reason) { s.rejected[r].Add(1) }

// end counts the one outcome of a connection: in the refusals too, if it is one.
func (s *stats) end(r Reason) {
	if c, forced := s.rejected[r]; forced {
		c.Add(1)
	}
	s.ended[r].Add(1)
}

// handshakeBounds are the upper bounds of relayedge_handshake_seconds.
var handshakeBounds = [...]float64{0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10}

type histogram struct {
	counts [len(handshakeBounds) + 1]atomic.Uint64
	nanos  atomic.Int64
}

func (h *histogram) observe(d time.Duration) {
	i := 0
	for i < len(handshakeBounds) && d.Seconds() > handshakeBounds[i] {
		i++
	}
	h.counts[i].Add(1)
	h.nanos.Add(int64(d))
}

func (h *histogram) read() (buckets map[float64]uint64, count uint64, sum float64) {
	buckets = make(map[float64]uint64, len(handshakeBounds))
	for i, bound := range handshakeBounds {
		count += h.counts[i].Load()
		buckets[bound] = count
	}
	count += h.counts[len(handshakeBounds)].Load()
	return buckets, count, time.Duration(h.nanos.Load()).Seconds()
}

// Families describes what the edge counts. Every reason is there from the start.
func (s *Server) Families() []telemetry.Family {
	st := s.stats
	byReason := func(m map[Reason]*atomic.Uint64, order []Reason) func(func(string, float64)) {
		return func(emit func(string, float64)) {
			for _, r := range order {
				emit(string(r), float64(m[r].Load()))
			}
		}
	}
	one := func(v func() float64) func(func(string, float64)) {
		return func(emit func(string, float64)) { emit("", v()) }
	}
	return []telemetry.Family{
		{Name: "connections", Help: "Open connections.", Kind: telemetry.Gauge, Label: "listener", Read: func(emit func(string, float64)) {
			for name, open := range s.openByListener() {
				emit(name, float64(open))
			}
		}},
		{Name: "connections_total", Help: "Connections accepted from the kernel, refused ones included.", Read: one(func() float64 { return float64(st.accepted.Load()) })},
		{Name: "rejections_total", Help: "Refusals and forced ends; rate_limit counts read pauses.", Label: "reason", Read: byReason(st.rejected, refusals)},
		{Name: "ended_total", Help: "Ends of connections, each once.", Label: "reason", Read: byReason(st.ended, ends)},
		{Name: "observed_total", Help: "What observed limits would have refused.", Label: "reason", Read: func(emit func(string, float64)) {
			for _, r := range []Reason{admission.PerIPCap, admission.PerPrefixCap, admission.ConnectionRate} {
				emit(string(r), float64(s.gate.Observed(r)))
			}
		}},
		{Name: "bytes_total", Help: "Bytes on the clients' side of the wire: in from clients, out to clients.", Label: "direction", Read: func(emit func(string, float64)) {
			emit("in", float64(st.bytesIn.Load()))
			emit("out", float64(st.bytesOut.Load()))
		}},
		{Name: "handshakes_in_flight", Help: "TLS handshakes begun and not done.", Kind: telemetry.Gauge, Read: one(func() float64 { return float64(s.places.InFlight()) })},
		{Name: "handshake_seconds", Help: "Time from accept, or from the PROXY header, to the end of the TLS handshake.", Kind: telemetry.Histogram, ReadHistogram: st.handshakes.read},
		{Name: "upstream_up", Help: "1 while the upstream takes connections.", Kind: telemetry.Gauge, Label: "upstream", Read: func(emit func(string, float64)) {
			for name, up := range s.upstreamsUp() {
				emit(name, map[bool]float64{true: 1}[up])
			}
		}},
		{Name: "limit", Help: "The limits in force.", Kind: telemetry.Gauge, Label: "limit", Read: func(emit func(string, float64)) {
			s.limits.Load().each(emit)
			if s.room.most > 0 {
				emit("descriptors", float64(s.room.most)) // the connections that they suffice for
			}
		}},
	}
}

package certs

import "relayedge/internal/telemetry"

// Families describes the certificates that are ordered from a CA; they are empty
// while nothing is. The domain is a name of the policy.
func (s *Store) Families() []telemetry.Family {
	return []telemetry.Family{
		{Name: "acme_orders_total", Help: "Attempts to order a certificate, by how they ended.", Label: "result", Read: func(emit func(string, float64)) {
			if s.acme.Load() == nil {
				return
			}
			emit("obtained", float64(s.orders.obtained.Load()))
			emit("renewed", float64(s.orders.renewed.Load()))
			emit("failed", float64(s.orders.failed.Load()))
		}},
		{Name: "acme_not_after_seconds", Help: "When the domain's certificate expires, in Unix time; 0 while there is none.", Kind: telemetry.Gauge, Label: "domain", Read: func(emit func(string, float64)) {
			for _, d := range s.domains() {
				at := 0.0
				if cert := d.served.Load(); cert != nil {
					at = float64(cert.Leaf.NotAfter.Unix())
				}
				emit(d.name, at)
			}
		}},
		{Name: "acme_retry_seconds", Help: "When the domain's certificate is attempted again after a failure, in Unix time; 0 while nothing has failed.", Kind: telemetry.Gauge, Label: "domain", Read: func(emit func(string, float64)) {
			for _, d := range s.domains() {
				d.mu.Lock()
				at := d.record.Next
				d.mu.Unlock()
				if held := d.heldUntil(); held.After(at) {
					at = held
				}
				if at.IsZero() {
					emit(d.name, 0)
				} else {
					emit(d.name, float64(at.Unix()))
				}
			}
		}},
	}
}

// domains are those of the policy in force.
func (s *Store) domains() []*domain {
	if m := s.acme.Load(); m != nil {
		return m.current()
	}
	return nil
}

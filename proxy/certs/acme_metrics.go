package certs

import "relayedge/internal/telemetry"

// Families describes the certificates that are ordered from a CA; there are none
// without. The domain is a name of the policy.
func (s *Store) Families() []telemetry.Family {
	m := s.acme
	if m == nil {
		return nil
	}
	return []telemetry.Family{
		{Name: "acme_orders_total", Help: "Attempts to order a certificate, by how they ended.", Label: "result", Read: func(emit func(string, float64)) {
			emit("obtained", float64(m.orders.obtained.Load()))
			emit("renewed", float64(m.orders.renewed.Load()))
			emit("failed", float64(m.orders.failed.Load()))
		}},
		{Name: "acme_not_after_seconds", Help: "When the domain's certificate expires, in Unix time; 0 while there is none.", Kind: telemetry.Gauge, Label: "domain", Read: func(emit func(string, float64)) {
			for _, d := range m.domains {
				at := 0.0
				if cert := d.served.Load(); cert != nil {
					at = float64(cert.Leaf.NotAfter.Unix())
				}
				emit(d.name, at)
			}
		}},
		{Name: "acme_retry_seconds", Help: "When the domain's certificate is attempted again after a failure, in Unix time; 0 while nothing has failed.", Kind: telemetry.Gauge, Label: "domain", Read: func(emit func(string, float64)) {
			held := m.heldUntil()
			for _, d := range m.domains {
				d.mu.Lock()
				at := d.record.Next
				d.mu.Unlock()
				if held.After(at) {
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

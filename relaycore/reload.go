package relaycore

import (
	"reflect"
	"time"

	"relayedge/admission"
	"relayedge/internal/keyfault"
	"relayedge/relaycore/push"
)

// settings are what connections read of the policy in force.
type settings struct {
	limits   *Limits // apart, since sessions keep them
	byteRate admission.Rate
	trust    admission.Networks // whose PROXY header is believed
	drain    time.Duration
}

func newSettings(cfg Config) *settings {
	l := cfg.Limits
	return &settings{
		limits: &l,
		byteRate: admission.Rate{
			N: int64(l.RateLimitBPS), Per: time.Second,
			Burst: int64(max(l.RateLimitBPS, l.MaxMessageBytes)),
		},
		trust: admission.NewNetworks(cfg.TrustProxyFrom),
		drain: secs(cfg.DrainSecs),
	}
}

// gateLimits are the caps of connections.
func gateLimits(l Limits) admission.Limits {
	caps := admission.DefaultLimits()
	caps.MaxConnections = l.MaxConnections
	caps.MaxConnectionsPerIP = l.MaxConnectionsPerIP
	caps.MaxConnectionsPerIPv648 = l.MaxConnectionsPerIPv648
	caps.ConnectionRatePerIP, caps.ConnectionRatePerIPv648 = 0, 0
	return caps
}

// Reload is a config that a Server can go on with.
type Reload struct {
	server *Server
	cfg    Config
	next   *settings
}

// Prepare returns what puts cfg in force, and changes nothing. Its error is that
// of cfg.Validate, or names a key that only a start takes: all but the limits, those
// of messages too, push, drain_secs, trust_proxy_from and what is no file of the offline queue.
func (s *Server) Prepare(cfg Config) (*Reload, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	fixed := cfg
	fixed.Limits, fixed.DrainSecs, fixed.TrustProxyFrom = s.start.Limits, s.start.DrainSecs, s.start.TrustProxyFrom
	fixed.MessageLimits, fixed.Push = s.start.MessageLimits, s.start.Push
	fixed.Metrics, fixed.Control = s.start.Metrics, s.start.Control // which are the caller's
	fixed.OfflineQueue.TTLSecs, fixed.OfflineQueue.KnockBudgetBytes = s.start.OfflineQueue.TTLSecs, s.start.OfflineQueue.KnockBudgetBytes
	was, is := reflect.ValueOf(s.start), reflect.ValueOf(fixed)
	for i := range was.NumField() {
		if !reflect.DeepEqual(was.Field(i).Interface(), is.Field(i).Interface()) {
			return nil, keyfault.New(was.Type().Field(i).Tag.Get("key"), "takes a restart")
		}
	}
	return &Reload{s, cfg, newSettings(cfg)}, nil
}

// Apply puts it in force. It does not wait, and ends no session. Counts,
// identities, requests, circuits and knocks stay. Limits that are lower bind who
// and what comes; the two byte budgets bind at the next byte that is charged,
// and then end the heaviest sessions as ever; the times for which something is
// kept end no later than if they began at this moment. A session keeps the times
// and the largest message that it was welcomed with. Whether sources are known
// stays as it was at the start.
func (r *Reload) Apply() {
	s, l := r.server, r.cfg.Limits
	if err := s.gate.SetLimits(gateLimits(l)); err != nil {
		panic("relaycore: limits that Validate let pass: " + err.Error())
	}
	if err := s.limits.SetLimits(r.cfg.MessageLimits); err != nil {
		panic("relaycore: message limits that Validate let pass: " + err.Error())
	}
	s.throttle.SetLimit(int64(r.cfg.MessageLimits.UnprovenPerHostMinute))
	s.budget.SetLimit(int64(r.cfg.Push.BudgetPerHour), push.BudgetWindow)
	s.push.SetConfig(r.cfg.Push)
	s.inForce.Store(r.next)
	s.outboundBudget.limit.Store(int64(l.OutboundBudgetBytes))
	s.bufferBudget.limit.Store(int64(l.BufferBudgetBytes))
	s.dir.bind(r.cfg, time.Now())
	s.mail.setLimits(mailLimits(r.cfg, s.sources.known))
}

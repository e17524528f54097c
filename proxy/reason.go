package proxy

import "relayedge/admission"

// Reason says why a connection was refused or how it ended. The list is
// closed: metrics, logs and tests use the same words, and dashboards rely on
// all of them, those included whose limit is not in use.
type Reason = admission.Reason

// The reasons beside the gate's own.
const (
	ProxyHeader            Reason = "proxy_header"            // the PROXY header was missing, malformed or late
	ProxyUntrusted         Reason = "proxy_untrusted"         // a peer outside trust_proxy_from
	HandshakeCap           Reason = "handshake_cap"           // no place among max_handshakes, or it went to another handshake
	TLSHandshakeTimeout    Reason = "tls_handshake_timeout"   // the handshake was not done in time
	TLSHandshakeFailed     Reason = "tls_handshake_failed"    // the handshake failed
	NotTLS                 Reason = "not_tls"                 // the first bytes were no TLS
	UnknownServerName      Reason = "unknown_server_name"     // no certificate or no upstream is configured for the name
	CertificateUnavailable Reason = "certificate_unavailable" // one is configured, but not to be had
	UpstreamUnavailable    Reason = "upstream_unavailable"    // the relay refused the connection, or is lost (when_down)
	UpstreamTimeout        Reason = "upstream_timeout"        // the relay did not answer in time
	LocalPorts             Reason = "local_ports"             // no local port is left towards the relay
	FirstByteTimeout       Reason = "first_byte_timeout"      // the client did not begin in time
	IdleTimeout            Reason = "idle_timeout"            // nothing came for connection_timeout_secs
	RateLimit              Reason = "rate_limit"              // a read pause; never an end
	WriterStall            Reason = "writer_stall"            // a peer took no byte for writer_stall_secs
	HalfCloseTimeout       Reason = "half_close_timeout"      // half-closed and without progress
	RequestRate            Reason = "request_rate"            // over the request limit
	Drain                  Reason = "drain"                   // still open at the end of drain_secs
	Descriptors            Reason = "descriptors"             // no descriptor was left
	TaskPanic              Reason = "task_panic"              // a fault of ours, which ended this connection only

	// Ends that are nobody's fault.
	ClientClosed   Reason = "client_closed"   // the client ended it
	UpstreamClosed Reason = "upstream_closed" // the relay ended it
	Reset          Reason = "reset"           // either side reset it
)

// StoreUnavailable says that the store that edges share did not answer, and the
// policy refuses then. The gate is one that says so.
const StoreUnavailable = admission.StoreUnavailable

// refusals are the reasons of relayedge_rejections_total.
var refusals = []Reason{
	admission.MaxConnections, admission.PerIPCap, admission.PerPrefixCap, admission.ConnectionRate, admission.Denied,
	ProxyHeader, ProxyUntrusted, HandshakeCap, TLSHandshakeTimeout, TLSHandshakeFailed, NotTLS,
	UnknownServerName, CertificateUnavailable, UpstreamUnavailable, UpstreamTimeout, LocalPorts,
	FirstByteTimeout, IdleTimeout, RateLimit, WriterStall, HalfCloseTimeout, RequestRate, Drain,
	Descriptors, StoreUnavailable, TaskPanic,
}

// ends are the reasons of relayedge_ended_total.
var ends = append(append([]Reason(nil), refusals...), ClientClosed, UpstreamClosed, Reset)

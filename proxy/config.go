package proxy

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"relayedge/admission"
	"relayedge/internal/hostport"
	"relayedge/internal/keyfault"
)

// ListenerConfig is one entry of the listeners section of the policy.
type ListenerConfig struct {
	Name           string            `key:"name" required:"true" doc:"the listener's name in metrics and logs"`
	Bind           string            `key:"bind" required:"true" path:"unix" doc:"host:port, unix:/path, or fd:NAME (systemd socket activation)"`
	Protocol       string            `key:"protocol" default:"tcp" enum:"tcp|http" doc:"tcp: bytes pass untouched; http: requests are parsed, and the relay is told of the client in a header"`
	TLS            string            `key:"tls" default:"terminate" enum:"terminate|passthrough|none" doc:"terminate: TLS ends here; passthrough: it ends at the relay, chosen by server name; none: plain TCP"`
	TLSMinVersion  string            `key:"tls_min_version" default:"1.2" enum:"1.2|1.3" doc:"the lowest TLS version"`
	ALPN           []string          `key:"alpn" default:"[http/1.1]" doc:"application protocols that are offered"`
	ClientCAFile   string            `key:"client_ca_file" default:"" path:"true" doc:"PEM file of the CAs whose client certificates are required; empty: none are asked for"`
	TrustProxyFrom []netip.Prefix    `key:"trust_proxy_from" default:"[]" doc:"networks whose PROXY header is required and believed; if set, every other peer is refused"`
	RefuseWith     string            `key:"refuse_with" default:"close" enum:"close|reset|tls_alert" doc:"how a connection that the limits refuse is closed: by a FIN, by a RST, or by the TLS alert access_denied and a FIN"`
	Upstream       string            `key:"upstream" default:"relay" doc:"where connections go whose server name is not listed; empty: they are refused"`
	ServerNames    map[string]string `key:"server_names" doc:"server name: upstream; *.example.org stands for one label"`
}

// Limits is the limits section of the policy: the gate's limits and those of a connection's life.
type Limits struct {
	admission.Limits `key:",inline"`

	// DenyFile names a list that stands beside Deny; GateLimits reads it.
	DenyFile                 string `key:"deny_file" default:"" path:"true" doc:"a file of networks that are refused as those of deny are, one a line, # before a comment; empty: none"`
	MaxHandshakes            int    `key:"max_handshakes" default:"1024" min:"1" max:"max_connections" doc:"TLS handshakes in flight; when all places are taken, the oldest of the source that holds most makes way for a lighter one"`
	RateLimitBPS             int    `key:"rate_limit_bps" default:"1048576" min:"1024" doc:"bytes a second that one client may send; beyond it the edge reads slower"`
	RateLimitBurstBytes      int    `key:"rate_limit_burst_bytes" default:"4194304" min:"65536" doc:"burst of rate_limit_bps: the larger of the two"`
	ProxyHeaderTimeoutSecs   int    `key:"proxy_header_timeout_secs" default:"5" min:"1" max:"60" doc:"time for a trusted peer's PROXY header, in all"`
	TLSHandshakeTimeoutSecs  int    `key:"tls_handshake_timeout_secs" default:"10" min:"1" max:"120" doc:"time to finish the TLS handshake, from accept or from the PROXY header"`
	FirstByteTimeoutSecs     int    `key:"first_byte_timeout_secs" default:"0" min:"0" max:"300" zero:"off" doc:"time from the handshake to the client's first byte"`
	ConnectionTimeoutSecs    int    `key:"connection_timeout_secs" default:"300" min:"60" max:"86400" doc:"time a connection may send nothing"`
	IdleCounts               string `key:"idle_counts" default:"client" enum:"client|both" doc:"whose bytes are progress for connection_timeout_secs"`
	WriterStallSecs          int    `key:"writer_stall_secs" default:"30" min:"1" max:"3600" doc:"time in which a peer takes no byte while bytes wait for it"`
	HalfCloseTimeoutSecs     int    `key:"half_close_timeout_secs" default:"60" min:"1" max:"3600" doc:"life of a half-closed pair without progress"`
	MaxRequestHeaderBytes    int    `key:"max_request_header_bytes" default:"32768" min:"1024" max:"1048576" doc:"protocol http: first line and header of a request"`
	MaxRequestBodyBytes      int    `key:"max_request_body_bytes" default:"16777216" min:"1" max:"68719476736" doc:"protocol http: body of a request"`
	RequestHeaderTimeoutSecs int    `key:"request_header_timeout_secs" default:"10" min:"1" max:"120" doc:"protocol http: time from a request's first byte to the end of its header"`
	RequestBodyTimeoutSecs   int    `key:"request_body_timeout_secs" default:"30" min:"1" max:"3600" doc:"protocol http: time in which no byte comes of a request's body"`
	ResponseTimeoutSecs      int    `key:"response_timeout_secs" default:"60" min:"1" max:"3600" doc:"protocol http: time from a request's end to the beginning of the relay's answer"`
	SocketBufferBytes        int    `key:"socket_buffer_bytes" default:"131072" min:"16384" max:"67108864" doc:"what the kernel holds of a connection's bytes, for each of its sockets and directions; with its bookkeeping, up to twice as much memory"`
	DrainSecs                int    `key:"drain_secs" default:"30" min:"0" max:"3600" doc:"time open connections get at shutdown; what is open then is closed, spread over as long again, ten seconds at most"`
}

// Validate judges what the tags cannot say.
func (c ListenerConfig) Validate() error {
	var faults []error
	if _, err := hostport.ParseBind(c.Bind); err != nil {
		faults = append(faults, keyfault.New("bind", "%w", err))
	}
	for i, name := range c.ALPN {
		if name == "" || len(name) > 255 {
			faults = append(faults, keyfault.New(fmt.Sprintf("alpn[%d]", i), "a protocol name has 1 to 255 bytes"))
		}
	}
	if c.TLS != "terminate" && c.ClientCAFile != "" {
		faults = append(faults, keyfault.New("client_ca_file", "client certificates need tls: terminate"))
	}
	if c.Protocol == "http" {
		faults = append(faults, c.judgeHTTP()...)
	}
	if c.TLS == "none" && c.RefuseWith == "tls_alert" {
		faults = append(faults, keyfault.New("refuse_with", "tls_alert is for clients that speak TLS; allowed without it: close, reset"))
	}
	return errors.Join(append(faults, c.judgeNames())...)
}

// judgeHTTP judges what requests that are parsed call for.
func (c ListenerConfig) judgeHTTP() (faults []error) {
	if c.TLS == "passthrough" {
		faults = append(faults, keyfault.New("tls", "passthrough leaves TLS to the relay, and requests inside it cannot be parsed; allowed with protocol: http are terminate and none"))
	}
	for i, name := range c.ALPN {
		switch name {
		case "http/1.1", "http/1.0":
		case "h2":
			faults = append(faults, keyfault.New(fmt.Sprintf("alpn[%d]", i), "h2 is not offered with protocol: http; write alpn: [http/1.1]"))
		default:
			faults = append(faults, keyfault.New(fmt.Sprintf("alpn[%d]", i), "%s is not what protocol: http speaks; write alpn: [http/1.1], or protocol: tcp", name))
		}
	}
	return faults
}

// judgeNames judges server_names, and an upstream that is empty on purpose.
func (c ListenerConfig) judgeNames() error {
	if len(c.ServerNames) == 0 {
		if c.Upstream == "" {
			return keyfault.New("upstream", "is empty, so nobody is served; name one, or write server_names")
		}
		return nil
	}
	if c.TLS == "none" {
		return keyfault.New("server_names", "without TLS no client says a server name; write tls: terminate or passthrough, or upstream alone")
	}
	var faults []error
	first := make(map[string]string)
	for _, written := range slices.Sorted(maps.Keys(c.ServerNames)) {
		name, err := canonicalPattern(written)
		if err != nil {
			faults = append(faults, keyfault.New("server_names."+written, "%w", err))
		} else if before, twice := first[name]; twice {
			faults = append(faults, keyfault.New("server_names."+written, "is the same name as %s", before))
		} else {
			first[name] = written
		}
	}
	return errors.Join(faults...)
}

// each emits the limits in force by their keys.
func (l Limits) each(emit func(limit string, value float64)) {
	for _, e := range []struct {
		key   string
		value int
	}{
		{"max_connections", l.MaxConnections},
		{"max_connections_per_ip", l.MaxConnectionsPerIP},
		{"max_connections_per_ipv6_48", l.MaxConnectionsPerIPv648},
		{"connection_rate_per_ip", l.ConnectionRatePerIP},
		{"connection_burst_per_ip", l.ConnectionBurstPerIP},
		{"connection_rate_per_ipv6_48", l.ConnectionRatePerIPv648},
		{"connection_burst_per_ipv6_48", l.ConnectionBurstPerIPv648},
		{"max_handshakes", l.MaxHandshakes},
		{"rate_limit_bps", l.RateLimitBPS},
		{"rate_limit_burst_bytes", max(l.RateLimitBPS, l.RateLimitBurstBytes)},
		{"proxy_header_timeout_secs", l.ProxyHeaderTimeoutSecs},
		{"tls_handshake_timeout_secs", l.TLSHandshakeTimeoutSecs},
		{"first_byte_timeout_secs", l.FirstByteTimeoutSecs},
		{"connection_timeout_secs", l.ConnectionTimeoutSecs},
		{"writer_stall_secs", l.WriterStallSecs},
		{"half_close_timeout_secs", l.HalfCloseTimeoutSecs},
		{"max_request_header_bytes", l.MaxRequestHeaderBytes},
		{"max_request_body_bytes", l.MaxRequestBodyBytes},
		{"request_header_timeout_secs", l.RequestHeaderTimeoutSecs},
		{"request_body_timeout_secs", l.RequestBodyTimeoutSecs},
		{"response_timeout_secs", l.ResponseTimeoutSecs},
		{"socket_buffer_bytes", l.SocketBufferBytes},
		{"drain_secs", l.DrainSecs},
	} {
		emit(e.key, float64(e.value))
	}
}

// times are the limits in the units that an engine counts in.
type times struct {
	proxyHeader, handshake, firstByte, idle, writerStall, halfClose, drain time.Duration

	// Of protocol http.
	header, body, response time.Duration
	headerBytes            int
	bodyBytes              int64

	idleCountsBoth bool
	bytes          admission.Rate
}

func (l Limits) times() *times {
	secs := func(n int) time.Duration { return time.Duration(n) * time.Second }
	return &times{
		proxyHeader:    secs(l.ProxyHeaderTimeoutSecs),
		handshake:      secs(l.TLSHandshakeTimeoutSecs),
		firstByte:      secs(l.FirstByteTimeoutSecs),
		idle:           secs(l.ConnectionTimeoutSecs),
		writerStall:    secs(l.WriterStallSecs),
		halfClose:      secs(l.HalfCloseTimeoutSecs),
		drain:          secs(l.DrainSecs),
		header:         secs(l.RequestHeaderTimeoutSecs),
		body:           secs(l.RequestBodyTimeoutSecs),
		response:       secs(l.ResponseTimeoutSecs),
		headerBytes:    l.MaxRequestHeaderBytes,
		bodyBytes:      int64(l.MaxRequestBodyBytes),
		idleCountsBoth: l.IdleCounts == "both",
		bytes: admission.Rate{
			N: int64(l.RateLimitBPS), Per: time.Second,
			Burst: int64(max(l.RateLimitBPS, l.RateLimitBurstBytes)),
		},
	}
}

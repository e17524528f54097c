package admission

import "net/netip"

// Limits are the settings of a Gate. The tags are read by the policy file:
// key, default, range and effect; Validate holds Go programs to the same ranges.
type Limits struct {
	MaxConnections          int `key:"max_connections" default:"10000" min:"1" doc:"open connections in all, counted from accept"`
	MaxConnectionsPerIP     int `key:"max_connections_per_ip" default:"64" min:"0" max:"max_connections" zero:"off" doc:"open connections from one IPv4 address or one IPv6 /64"`
	MaxConnectionsPerIPv648 int `key:"max_connections_per_ipv6_48" default:"256" min:"0" max:"max_connections" zero:"off" doc:"open connections from one IPv6 /48"`

	ConnectionRatePerIP      int `key:"connection_rate_per_ip" default:"20" min:"0" max:"100000" zero:"off" doc:"new connections a second from one IPv4 address or one IPv6 /64"`
	ConnectionBurstPerIP     int `key:"connection_burst_per_ip" default:"128" min:"1" max:"1000000" doc:"burst of connection_rate_per_ip"`
	ConnectionRatePerIPv648  int `key:"connection_rate_per_ipv6_48" default:"80" min:"0" max:"100000" zero:"off" doc:"new connections a second from one IPv6 /48"`
	ConnectionBurstPerIPv648 int `key:"connection_burst_per_ipv6_48" default:"512" min:"1" max:"1000000" doc:"burst of connection_rate_per_ipv6_48"`

	// Observe names the limits, by key, that only count what they would have refused.
	Observe []string `key:"observe" default:"[]" enum:"max_connections_per_ip|max_connections_per_ipv6_48|connection_rate_per_ip|connection_rate_per_ipv6_48" doc:"limits that count what they would refuse and let it in"`
	// Deny lists the networks that are refused.
	Deny []netip.Prefix `key:"deny" default:"[]" doc:"networks refused at accept"`
	// EmbeddedIPv4 lists the prefixes whose last 32 bits are the client's IPv4 address.
	EmbeddedIPv4 []netip.Prefix `key:"embedded_ipv4" default:"[64:ff9b::/96]" doc:"IPv6 prefixes whose last 32 bits are the client's IPv4 address"`
}

// DefaultLimits returns the defaults of the policy file.
func DefaultLimits() Limits { panic("stub") }

// Validate returns an error that names every field out of its range.
func (l Limits) Validate() error { panic("stub") }

package status

import "time"

// Status is the document. The names of its fields are kept: docs/status.md has them.
type Status struct {
	Version    string    `json:"version"` // of the program
	At         time.Time `json:"at"`      // of the figures: UTC, whole seconds
	Started    time.Time `json:"started"`
	UptimeSecs int64     `json:"uptime_secs"`
	Ready      bool      `json:"ready"`
	NotReady   string    `json:"not_ready,omitempty"` // why not

	Connections  Connections   `json:"connections"`
	Handshakes   Handshakes    `json:"handshakes"`
	Bytes        Bytes         `json:"bytes"`
	Rejections   []Rejection   `json:"rejections"` // refusals and forced ends: every reason, in the order of the metrics
	Ended        []Total       `json:"ended"`
	Observed     []Total       `json:"observed"`
	Listeners    []Listener    `json:"listeners"`
	Upstreams    []Upstream    `json:"upstreams"`
	Certificates []Certificate `json:"certificates"`
	Limits       []Limit       `json:"limits"`
	Capped       Capped        `json:"capped"`
	History      History       `json:"history"`
}

// Counts are a counter since the start, and what of it came in the last minute and
// in the last hour, to within five seconds.
type Counts struct {
	Total  uint64 `json:"total"`
	Minute uint64 `json:"minute"`
	Hour   uint64 `json:"hour"`
}

type Connections struct {
	Open     int    `json:"open"`
	Accepted Counts `json:"accepted"` // from the kernel, refused ones included
}

type Handshakes struct {
	InFlight int    `json:"in_flight"`
	Done     Counts `json:"done"`
}

// Bytes are those on the clients' side of the wire.
type Bytes struct {
	In  Counts `json:"in"`
	Out Counts `json:"out"`
}

type Rejection struct {
	Reason string `json:"reason"`
	Counts
}

// Total is a counter of a reason.
type Total struct {
	Reason string `json:"reason"`
	Total  uint64 `json:"total"`
}

type Listener struct {
	Name     string `json:"name"`
	Address  string `json:"address"`
	Protocol string `json:"protocol"`
	TLS      string `json:"tls"`
	Open     int    `json:"open"`
	Leaving  bool   `json:"leaving"` // removed by a reload, with connections left
}

type Upstream struct {
	Name      string    `json:"name"`
	Up        bool      `json:"up"`
	Addresses []Address `json:"addresses"`
}

type Address struct {
	Address     string `json:"address"`
	Up          bool   `json:"up"`
	Connections int    `json:"connections"`
}

// Certificate is one that is configured. NotAfter is nil, and ExpiresInSecs 0, while
// it is not to be had.
type Certificate struct {
	Names         []string   `json:"names"`
	Source        string     `json:"source"` // files, acme, or self_issued
	NotAfter      *time.Time `json:"not_after"`
	ExpiresInSecs int64      `json:"expires_in_secs"` // below 0 once it has
}

// Limit is one that is in force. Used is nil where there is nothing to hold against
// it; of a cap for each host or site it is what the one with the most has.
type Limit struct {
	Limit string `json:"limit"`
	Value int64  `json:"value"`
	Off   bool   `json:"off"`
	Used  *int64 `json:"used,omitempty"`
}

// Capped are the hosts and sites that have as many connections as they may.
type Capped struct {
	Hosts    int       `json:"hosts"`
	Sites    int       `json:"sites"`
	Shown    bool      `json:"shown"`    // log.client_addresses allows networks
	Networks []Network `json:"networks"` // in which they are, those with the most connections first
	More     int       `json:"more"`     // networks that are not listed
}

type Network struct {
	Network     string `json:"network"` // an IPv4 /24 or an IPv6 /48
	Hosts       int    `json:"hosts"`   // at their caps
	Sites       int    `json:"sites"`
	Connections int    `json:"connections"` // of those
}

// History is the last hour: what a sample found, and what came since the one
// before. The columns are of one length.
type History struct {
	StepSecs    int      `json:"step_secs"`
	At          []int64  `json:"at"` // Unix time
	Connections []int    `json:"connections"`
	Accepted    []uint64 `json:"accepted"`
	Rejections  []uint64 `json:"rejections"` // read pauses, rate_limit, are not among them
	Handshakes  []uint64 `json:"handshakes"`
	BytesIn     []uint64 `json:"bytes_in"`
	BytesOut    []uint64 `json:"bytes_out"`
	Periods     []Period `json:"periods"` // the same by five minutes of the clock
}

type Period struct {
	From            time.Time `json:"from"`
	ConnectionsMost int       `json:"connections_most"`
	Accepted        uint64    `json:"accepted"`
	Rejections      uint64    `json:"rejections"`
	BytesIn         uint64    `json:"bytes_in"`
	BytesOut        uint64    `json:"bytes_out"`
}

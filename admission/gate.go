package admission

import (
	"net/netip"
	"time"
)

// Reason says why a connection was refused. The empty Reason means admitted.
type Reason string

// The gate's reasons, in the order in which it looks.
const (
	Denied         Reason = "denied"          // the address is on the deny list
	MaxConnections Reason = "max_connections" // the global cap is reached
	PerIPCap       Reason = "per_ip_cap"      // the host's cap is reached
	PerPrefixCap   Reason = "per_prefix_cap"  // the site's cap is reached
	ConnectionRate Reason = "connection_rate" // the host or the site opens connections too fast
)

// Gate decides whether a connection may exist. It is safe for concurrent use
// and exact under it.
type Gate struct{}

// NewGate returns a gate with the limits l, or the error of l.Validate.
func NewGate(l Limits) (*Gate, error) { panic("stub") }

// SetLimits puts l in force for newcomers. Nobody who was admitted is evicted
// and every count stays. It returns the error of l.Validate and then changes nothing.
func (g *Gate) SetLimits(l Limits) error { panic("stub") }

// Admit charges one connection from addr, all or nothing. A refusal changes no
// count and allocates nothing. The zero addr stands for a peer without a host
// (a unix socket, or a peer that a PROXY header has yet to name): it is charged
// to the global cap alone. now feeds the connection rates by its monotonic reading.
func (g *Gate) Admit(addr netip.Addr, now time.Time) (*Lease, Reason) { panic("stub") }

// Stats is a snapshot of what the gate holds.
type Stats struct {
	Connections int               // leases out
	Hosts       int               // rows of the host table: hosts with open connections or with a bucket that is not full again
	Sites       int               // the same for sites
	Observed    map[Reason]uint64 // what observed limits would have refused, since the start
}

// Stats returns what the gate holds at now; rows whose bucket is full again by then are dropped first.
func (g *Gate) Stats(now time.Time) Stats { panic("stub") }

// Lease is what the gate hands out for an admitted connection. It holds the
// exact rows that were charged, so a change of limits cannot make it give back
// something else.
type Lease struct{}

// Name charges the lease, which holds a global slot so far, to addr as well:
// deny list, host, site and rates, all or nothing. It is for connections whose
// client a PROXY header names. After a refusal the lease still holds its
// global slot. Naming a lease twice or after Release panics.
func (l *Lease) Name(addr netip.Addr, now time.Time) Reason { panic("stub") }

// Release gives back all that the lease holds. Calls after the first do nothing.
func (l *Lease) Release() { panic("stub") }

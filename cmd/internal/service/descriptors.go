package service

import "fmt"

// reserve is how many descriptors are kept from connections: the endpoints of
// metrics and control, files, the runtime's own, and dials for health checks.
const reserve = 64

// Descriptors holds the process's descriptor limit against its connections.
type Descriptors struct {
	Limit       int // descriptors that the process may have; 0: not known
	Connections int // max_connections
	Each        int // descriptors of one connection
	Sockets     int // that listen
}

// Needed is how many descriptors all connections take, the reserve included.
func (d Descriptors) Needed() int { return d.Connections*d.Each + reserve + d.Sockets }

// Room is how many connections the limit has descriptors for. Of a small limit
// no more than a quarter is kept from them. 0 says that it is not known.
func (d Descriptors) Room() int {
	if d.Limit == 0 {
		return 0
	}
	return max((d.Limit-min(reserve+d.Sockets, d.Limit/4))/d.Each, 1)
}

// Short reports whether the limit does not cover the connections.
func (d Descriptors) Short() bool { return d.Limit > 0 && d.Room() < d.Connections }

// Advice says what to do about a limit that is too short.
func (d Descriptors) Advice(key string) string {
	return fmt.Sprintf("write LimitNOFILE=%[1]d in the unit (ulimit -n %[1]d in a shell), or lower %[2]s", d.Needed(), key)
}

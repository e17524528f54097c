package proxy

import "sync/atomic"

// room is how many connections the descriptors suffice for. It is exact under
// concurrent use, and a connection beyond it costs no more than its refusal.
type room struct {
	most  int64 // static; 0: no bound
	taken atomic.Int64
}

func (r *room) take() bool {
	for {
		taken := r.taken.Load()
		if r.most > 0 && taken >= r.most {
			return false
		}
		if r.taken.CompareAndSwap(taken, taken+1) {
			return true
		}
	}
}

func (r *room) give() { r.taken.Add(-1) }

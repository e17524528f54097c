package socket

import "sync"

// Pool lends buffers of one size. Several connections share one.
type Pool struct{ buffers sync.Pool }

// NewPool makes a pool of buffers that are size bytes long.
func NewPool(size int) *Pool {
	return &Pool{sync.Pool{New: func() any { return new(make([]byte, size)) }}}
}

// Get lends a buffer, by a pointer because a pool of bare slices would allocate
// for each that is put back. What it points to has the pool's size and any content.
func (p *Pool) Get() *[]byte { return p.buffers.Get().(*[]byte) }

// Put takes a buffer of Get back, whole.
func (p *Pool) Put(b *[]byte) { p.buffers.Put(b) }

package admission

import "net"

// Listener yields only admitted connections. A refusal is closed and never an
// Accept error; an accept that fails for want of descriptors or memory is
// tried again after a pause.
type Listener struct{}

// NewListener guards ln with g. refused, if not nil, is told of each refusal; it must not block.
func NewListener(ln net.Listener, g *Gate, refused func(Reason)) *Listener { panic("stub") }

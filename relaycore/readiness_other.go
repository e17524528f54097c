//go:build !unix

package relaycore

// readinessWorks is false where sockets are not file descriptors that can be
// read without waiting: sessions read into a buffer that they hold meanwhile.
const readinessWorks = false

func (s *socket) tryRead(uintptr) bool { return true }

func (w *writer) tryWrite(uintptr) bool { return true }

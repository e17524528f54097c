//go:build !unix

package testredis

// Freeze skips the test: this system cannot stop a process where it is.
func (s *Server) Freeze() { s.t.Skip("this system freezes no process") }

// Thaw lets it go on.
func (s *Server) Thaw() {}

//go:build unix

package testredis

import "syscall"

// Freeze stops the process where it is: it takes connections and bytes, as far as
// the kernel keeps them, and answers nothing.
func (s *Server) Freeze() { s.signal(syscall.SIGSTOP) }

// Thaw lets it go on.
func (s *Server) Thaw() { s.signal(syscall.SIGCONT) }

func (s *Server) signal(sig syscall.Signal) {
	s.t.Helper()
	if err := s.cmd.Process.Signal(sig); err != nil {
		s.t.Fatal(err)
	}
}

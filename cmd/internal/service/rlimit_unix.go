//go:build unix

package service

import "syscall"

// DescriptorLimit returns how many descriptors this process may have, or 0 if
// that is not known. The runtime has raised the soft limit to the hard one
// before main.
func DescriptorLimit() int {
	var l syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l) != nil {
		return 0
	}
	// Unlimited is the largest number there is.
	return int(min(uint64(l.Cur), 1<<30))
}

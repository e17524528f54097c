//go:build unix

package service

import (
	"syscall"
	"time"
)

const processorTimeWorks = true

// processorTime is what the process has used up.
func processorTime() time.Duration {
	var use syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &use) != nil {
		return 0
	}
	return time.Duration(use.Utime.Nano() + use.Stime.Nano())
}

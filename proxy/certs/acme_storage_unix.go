//go:build linux || darwin || freebsd || netbsd || openbsd || dragonfly

package certs

import (
	"errors"
	"os"
	"syscall"
)

// tryLockFile takes the kernel's lock of an open file, unless somebody holds it.
func tryLockFile(file *os.File) (bool, error) {
	err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return false, nil
	}
	return err == nil, err
}

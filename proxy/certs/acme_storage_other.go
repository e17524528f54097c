//go:build !(linux || darwin || freebsd || netbsd || openbsd || dragonfly)

package certs

import "os"

// tryLockFile is for systems without flock: there the lock holds within this
// process alone.
func tryLockFile(*os.File) (bool, error) { return true, nil }

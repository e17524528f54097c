//go:build !linux

package loop

import "errors"

// Open fails: the kernel's part is written for Linux.
func Open(together int) (*Loop, error) { return nil, errors.ErrUnsupported }

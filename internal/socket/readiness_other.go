//go:build !unix

package socket

import "errors"

// readinessWorks is false where connections are not file descriptors that can
// be read without waiting.
const readinessWorks = false

func readNow(uintptr, []byte) (n int, again bool, err error) {
	return 0, false, errors.ErrUnsupported
}

func writeNow(uintptr, []byte) (n int, again bool, err error) {
	return 0, false, errors.ErrUnsupported
}

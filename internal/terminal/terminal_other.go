//go:build !linux && !darwin

package terminal

import "os"

// Is reports whether a file is a terminal.
func Is(*os.File) bool { return false }

// Size is how many characters a terminal is wide and high.
func Size(*os.File) (wide, high int, err error) { return 0, 0, ErrNone }

// Keys has a terminal hand over each key as it is pressed.
func Keys(*os.File) (restore func() error, err error) { return nil, ErrNone }

// Resized is told when the size of the program's terminal changes, until stop.
func Resized() (changes <-chan os.Signal, stop func()) { return nil, func() {} }

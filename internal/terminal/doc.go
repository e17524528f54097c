// Package terminal is the little that a program needs of a terminal to draw on it:
// whether a file is one, how large it is, when that changes, and keys that come as
// they are pressed. It draws nothing. Where the system is none that it knows, no
// file is a terminal.
package terminal

import "errors"

// ErrNone says that a file is no terminal.
var ErrNone = errors.New("not a terminal")

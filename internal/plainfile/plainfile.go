// Package plainfile opens the files that a policy names, and nothing that could
// make whoever reads them wait: opening a pipe waits for its writer, reading a
// device may have no end, and what stands at a path can change at any moment.
package plainfile

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"
)

// ErrKind says that something else than a regular file stands at a path.
var ErrKind = errors.New("is no regular file")

// Open opens a regular file, symbolic links followed. Its errors are *fs.PathError.
func Open(path string) (*os.File, error) {
	// Opening alone does something to some devices. What cannot be looked at
	// cannot be opened either, and that says it in the usual words.
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() {
		return nil, &fs.PathError{Op: "open", Path: path, Err: ErrKind}
	}
	// The flag changes nothing for a regular file. A pipe that took its place just
	// now is opened without its writer, and told by the second look.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = &fs.PathError{Op: "open", Path: path, Err: ErrKind}
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// Read reads a regular file of at most so many bytes.
func Read(path string, most int) ([]byte, error) {
	f, err := Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	// One byte beyond the bound is enough to see that it is exceeded.
	data, err := io.ReadAll(io.LimitReader(f, int64(most)+1))
	if err == nil && len(data) > most {
		err = &fs.PathError{Op: "read", Path: path, Err: fmt.Errorf("is larger than %d bytes", most)}
	}
	if err != nil {
		return nil, err
	}
	return data, nil
}

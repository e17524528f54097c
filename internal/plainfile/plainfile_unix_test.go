//go:build unix

package plainfile

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"
)

// A pipe without a writer is told apart at once, also where it takes the place
// of a file while that is being opened.
func TestPipe(t *testing.T) {
	dir := t.TempDir()
	pipe, file, path := filepath.Join(dir, "pipe"), filepath.Join(dir, "file"), filepath.Join(dir, "path")
	if err := errors.Join(syscall.Mkfifo(pipe, 0o600), os.WriteFile(file, nil, 0o600), os.Symlink(pipe, path)); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(path, 8); !errors.Is(err, ErrKind) {
		t.Errorf("%v", err)
	}
	var swaps sync.WaitGroup
	stop := make(chan struct{})
	swaps.Go(func() {
		next := filepath.Join(dir, "next")
		for at := 0; ; at++ {
			select {
			case <-stop:
				return
			default:
			}
			if err := errors.Join(os.Symlink([]string{file, pipe}[at%2], next), os.Rename(next, path)); err != nil {
				t.Error(err)
				return
			}
		}
	})
	read := make(chan struct{})
	go func() {
		defer close(read)
		for range 5000 {
			if _, err := Read(path, 8); err != nil && !errors.Is(err, ErrKind) {
				t.Error(err)
				return
			}
		}
	}()
	select {
	case <-read:
	case <-time.After(time.Minute):
		t.Error("waits for the writer of a pipe")
		if f, err := os.OpenFile(pipe, os.O_RDWR, 0); err == nil { // which frees it
			defer f.Close()
		}
	}
	close(stop)
	swaps.Wait()
}

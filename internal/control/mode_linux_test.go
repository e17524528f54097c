package control

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"testing"
)

// At no moment may others connect: whoever looks all the time sees no other mode.
func TestModeFromTheFirstMoment(t *testing.T) {
	folder := t.TempDir()
	for range 200 {
		socket := filepath.Join(folder, "c.sock")
		var looking sync.WaitGroup
		seen := make(chan fs.FileMode, 1)
		started := make(chan struct{})
		looking.Go(func() {
			close(started)
			for {
				info, err := os.Lstat(socket)
				if !errors.Is(err, fs.ErrNotExist) {
					seen <- info.Mode()
					return
				}
			}
		})
		<-started
		ln, err := Listen(Config{socket})
		if err != nil {
			t.Fatal(err)
		}
		looking.Wait()
		ln.Close()
		if mode := <-seen; mode != fs.ModeSocket|0o600 {
			t.Fatalf("mode %v", mode)
		}
	}
}

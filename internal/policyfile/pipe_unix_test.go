//go:build unix

package policyfile

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// A policy may come through a pipe; one that never ends holds up nobody for ever.
func TestReadAPipe(t *testing.T) {
	for _, row := range []struct {
		name  string
		write func(*os.File) // nil: there is no writer
		says  string         // what the error does; empty: there is none
	}{
		{"written", func(w *os.File) {
			time.AfterFunc(100*time.Millisecond, func() { w.WriteString("on: true\n"); w.Close() })
		}, ""},
		{"no writer", nil, "is a pipe that nobody writes to"},
		{"no end", func(w *os.File) { w.WriteString("on: true\n") }, "its end has not come in"},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "pipe")
			if err := syscall.Mkfifo(path, 0o600); err != nil {
				t.Fatal(err)
			}
			if row.write != nil {
				// Opened for both, since opening to write alone waits for a reader.
				hold, err := os.OpenFile(path, os.O_RDWR, 0)
				if err != nil {
					t.Fatal(err)
				}
				w, err := os.OpenFile(path, os.O_WRONLY, 0)
				if err != nil {
					t.Fatal(err)
				}
				defer w.Close()
				hold.Close()
				row.write(w)
			}
			var p struct {
				On bool `key:"on" default:"false" doc:"a switch"`
			}
			read := make(chan error, 1)
			go func() {
				doc, err := Read(path, &p)
				if err == nil {
					err = doc.Err()
				}
				read <- err
			}()
			select {
			case err := <-read:
				if row.says == "" && (err != nil || !p.On) || row.says != "" && (err == nil || !strings.Contains(err.Error(), row.says) || !strings.Contains(err.Error(), path)) {
					t.Errorf("%v, on: %v", err, p.On)
				}
			case <-time.After(time.Minute):
				t.Fatal("waits for ever")
			}
		})
	}
}

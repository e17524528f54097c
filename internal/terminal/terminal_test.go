package terminal

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// What is no terminal is told as such, however it is asked; one is looked at by the
// tests of the command that draws.
func TestNoTerminal(t *testing.T) {
	file, err := os.Create(filepath.Join(t.TempDir(), "file"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer read.Close()
	defer write.Close()
	for name, f := range map[string]*os.File{"a file": file, "a pipe": read} {
		if Is(f) {
			t.Errorf("%s is a terminal", name)
		}
		if _, _, err := Size(f); !errors.Is(err, ErrNone) {
			t.Errorf("the size of %s: %v", name, err)
		}
		if _, err := Keys(f); !errors.Is(err, ErrNone) {
			t.Errorf("the keys of %s: %v", name, err)
		}
	}
	file.Close()
	if Is(file) {
		t.Error("a closed file is a terminal")
	}
	changes, stop := Resized()
	stop()
	select {
	case <-changes:
		t.Error("a size has changed")
	default:
	}
}

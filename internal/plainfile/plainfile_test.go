package plainfile

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestRead(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	link := filepath.Join(dir, "link")
	if err := errors.Join(os.WriteFile(file, []byte("12345678"), 0o600), os.Symlink(file, link)); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{file, link} {
		if data, err := Read(path, 8); string(data) != "12345678" || err != nil {
			t.Errorf("%s: %q, %v", path, data, err)
		}
	}
	if data, err := Read(file, 7); data != nil || err == nil || !strings.Contains(err.Error(), "is larger than 7 bytes") {
		t.Errorf("one byte too many: %q, %v", data, err)
	}
	if _, err := Read(filepath.Join(dir, "none"), 8); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
}

func TestOtherKinds(t *testing.T) {
	dir := t.TempDir()
	socket := filepath.Join(dir, "socket")
	ln, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	for _, path := range []string{dir, socket, os.DevNull} {
		_, err := Open(path)
		if named, ok := errors.AsType[*fs.PathError](err); !ok || named.Path != path || !errors.Is(err, ErrKind) {
			t.Errorf("%s: %v", path, err)
		}
	}
}

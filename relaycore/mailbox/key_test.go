package mailbox

import (
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestReadKey(t *testing.T) {
	good := hex.EncodeToString(testKey[:])
	for _, row := range []struct {
		name, text string
		mode       os.FileMode
		fault      string // in the error; empty: it is a key
	}{
		{"plain", good, 0o600, ""},
		{"as openssl writes it", good + "\n", 0o600, ""},
		{"CRLF and spaces", "  " + strings.ToUpper(good) + "\r\n", 0o600, ""},
		{"read-only", good, 0o400, ""},
		{"group may read", good, 0o640, ""},
		{"group may write", good, 0o660, "chmod 600"},
		{"all may read", good, 0o644, "chmod 600"},
		{"all may write", good, 0o602, "chmod 600"},
		{"empty", "", 0o600, "64 hexadecimal digits"},
		{"short", good[1:], 0o600, "64 hexadecimal digits"},
		{"long", good + "00", 0o600, "64 hexadecimal digits"},
		{"two lines", good + "\n" + good, 0o600, "64 hexadecimal digits"},
		{"no hex", "x" + good[1:], 0o600, "no hexadecimal digits"},
		{"inner space", good[:30] + "  " + good[32:], 0o600, "no hexadecimal digits"},
		{"zeros", strings.Repeat("0", 64), 0o600, "all zeros"},
		{"a large file", strings.Repeat(good, 1000), 0o600, "64 hexadecimal digits"},
	} {
		t.Run(row.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "key")
			if err := os.WriteFile(path, []byte(row.text), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.Chmod(path, row.mode); err != nil {
				t.Fatal(err)
			}
			key, err := ReadKey(path)
			if row.fault == "" {
				if err != nil || key != testKey {
					t.Errorf("%x, %v", key, err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), row.fault) || !strings.Contains(err.Error(), path) {
				t.Errorf("%v, want one that says %q", err, row.fault)
			}
			if len(row.text) > 40 && strings.Contains(err.Error(), row.text[10:40]) {
				t.Error("the error tells the key")
			}
		})
	}
	if _, err := ReadKey(t.TempDir()); err == nil || !strings.Contains(err.Error(), "no regular file") {
		t.Errorf("a folder: %v", err)
	}
	if _, err := ReadKey(filepath.Join(t.TempDir(), "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
}

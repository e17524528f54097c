package service

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"relayedge/cmd/internal/policy"
	"relayedge/internal/testport"
	"relayedge/internal/testredis"
)

// check --machine says of a store whether decisions can be made there, and what is
// wrong if not, at the key that is to be mended.
func TestMachineStore(t *testing.T) {
	store := testredis.Start(t, "--requirepass", "right")
	replica := testredis.Start(t)
	replica.Ask("REPLICAOF", "127.0.0.1", fmt.Sprint(testport.Free(t)))
	folder := t.TempDir()
	file := func(name, text string, mode os.FileMode) string {
		path := filepath.Join(folder, name)
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	secret := file("secret", strings.Repeat("a secret", 4), 0o600)
	for _, row := range []struct {
		name, url, urlFile, secret, ca string
		faults                         []string // none: it is well
	}{
		{"well", "redis://:right@" + store.Addr, "", secret, "", nil},
		{"well, by a file", "", file("url", "redis://:right@"+store.Addr, 0o640), secret, "", nil},
		{"a wrong password", "redis://:wrong@" + store.Addr, "", secret, "", []string{"p.yaml:1: redis.url: it cannot be reached: WRONGPASS"}},
		{"no password", "redis://" + store.Addr, "", secret, "", []string{"p.yaml:1: redis.url: it cannot be reached: NOAUTH"}},
		{"a wrong password in a file", "", file("wrong", "redis://:wrong@"+store.Addr, 0o600), secret, "", []string{"p.yaml:1: redis.url_file: it cannot be reached: WRONGPASS"}},
		{"nobody there", fmt.Sprintf("redis://127.0.0.1:%d", testport.Free(t)), "", secret, "", []string{"p.yaml:1: redis.url: it cannot be reached: "}},
		{"a replica", "redis://" + replica.Addr, "", secret, "", []string{"p.yaml:1: redis.url: it decides nothing: READONLY"}},
		{"a secret that others read", "redis://:right@" + store.Addr, "", file("open", strings.Repeat("a secret", 4), 0o644), "", []string{"p.yaml:1: redis.secret_file: ", "chmod 600"}},
		{"a URL that others read", "", file("openurl", "redis://:right@"+store.Addr, 0o644), secret, "", []string{"p.yaml:1: redis.url_file: ", "chmod 600"}},
		{"no secret, and nobody there", fmt.Sprintf("redis://127.0.0.1:%d", testport.Free(t)), "", folder + "/none", "",
			[]string{"p.yaml:1: redis.secret_file: open ", "p.yaml:1: redis.url: it cannot be reached: "}},
		{"a CA without TLS", "redis://:right@" + store.Addr, "", secret, secret, []string{"p.yaml:1: redis.ca_file: the url is none of TLS"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			p, err := policy.LoadBytes("p.yaml", fmt.Appendf(nil, "redis: {url: %q, url_file: %q, secret_file: %q, ca_file: %q}", row.url, row.urlFile, row.secret, row.ca))
			if err != nil {
				t.Fatal(err)
			}
			m := &Machine{Policy: p, file: "p.yaml", warnings: io.Discard}
			well := m.Store()
			if got := m.err(); well != (row.faults == nil) || (got == nil) != well {
				t.Fatalf("%v: %v", well, got)
			} else if got != nil {
				for _, fault := range row.faults {
					if !strings.Contains(got.Error(), fault) {
						t.Errorf("%v; want %q", got, fault)
					}
				}
				if strings.Contains(got.Error(), "right") || strings.Contains(got.Error(), "wrong@") {
					t.Errorf("it tells the password: %v", got)
				}
			}
		})
	}
	if m := (&Machine{Policy: policy.Default(), warnings: io.Discard}); m.Store() || m.err() != nil {
		t.Errorf("without a store: %v", m.err())
	}
}

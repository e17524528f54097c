package main_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"

	"relayedge/internal/testca"
	"relayedge/internal/testport"
)

// Where the result of an order could not be kept none is placed, the storage is
// told by its path, and whatever else there is to serve is served.
func TestStoragesThatCannotBeWritten(t *testing.T) {
	unshare, setpriv := peer(t, "unshare"), peer(t, "setpriv")
	// Without these a mode binds root as everybody else.
	bound := []string{setpriv, "--bounding-set", "-dac_override,-dac_read_search", "--"}
	if err := exec.Command(unshare, append([]string{"-m"}, append(bound, "true")...)...).Run(); err != nil {
		t.Skipf("no mount namespace can be made: %v", err)
	}
	// on runs what follows with a file system of its own in the folder.
	on := func(folder, options, then string) []string {
		return []string{unshare, "-m", "sh", "-c", `mount -t tmpfs -o ` + options + ` none "$0" && mkdir -p "$0/storage/orders" && ` + then + ` && exec "$@"`, folder}
	}
	for _, tt := range []struct {
		name string
		by   func(folder string) []string // runs what follows, with the storage as it is to be
		want string
	}{
		{"mode 0500", func(folder string) []string {
			return prepared(t, folder, bound, func(storage string) error { return os.Chmod(storage, 0o500) })
		}, "permission denied; let the user of this process write there"},
		{"another user's", func(folder string) []string {
			return prepared(t, folder, bound, func(storage string) error {
				if err := os.Chmod(storage, 0o700); err != nil {
					return err
				}
				return os.Chown(storage, 65534, 65534)
			})
		}, "permission denied; let the user of this process write there"},
		{"read-only file system", func(folder string) []string {
			return on(folder, "size=1m", `mount -o remount,ro "$0"`)
		}, "read-only file system; mount it for writing"},
		{"full disk", func(folder string) []string { return on(folder, "size=32k", "true") }, "no space left on device; make room there"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			public := loopback4(t)
			ca := testca.Start(t, testca.Options{TLSPort: portOf(t, public), HTTPPort: testport.Free(t)})
			folder := t.TempDir()
			storage := filepath.Join(folder, "storage")
			e := startEdgeBy(t, fmt.Sprintf("listeners: [{name: public, bind: %q}]\n", public)+acmeAndOwn(ca, storage), tt.by(folder)...)
			if _, err := e.await(&e.stderr, regexp.MustCompile(`level=ERROR msg="nothing is ordered, since it could not be kept: storage `+regexp.QuoteMeta(storage)+` cannot be written: `+tt.want)); err != nil {
				t.Error(err)
			}
			conn, err := dial(t.Context(), "", public, "own.example.org")
			if err != nil {
				t.Errorf("another name: %v", err)
			} else {
				conn.Close()
			}
			e.shows(t, `relayedge_acme_orders_total{result="failed"} 0`, `relayedge_acme_not_after_seconds{domain="a.example.org"} 0`)
			e.terminate(t)
			if code, err := e.ended(); code != 0 || err != nil {
				t.Errorf("ended with %d, %v", code, err)
			}
			if n := ca.Requests(); n != 0 {
				t.Errorf("%d requests to the CA", n)
			}
		})
	}
}

// prepared makes a storage that has been used, and then as change has it until
// the test's end.
func prepared(t *testing.T, folder string, by []string, change func(storage string) error) []string {
	t.Helper()
	storage := filepath.Join(folder, "storage")
	if err := os.MkdirAll(filepath.Join(storage, "orders"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := change(storage); err != nil {
		t.Fatal(err)
	}
	return by
}

package main_test

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"relayedge/internal/testca"
)

// The tests of this package run the real binaries, as an operator does.

var binaries struct {
	sync.Once
	folder string
	err    error
}

// metricsPortHeld is false where somebody else had the default metrics port, and
// may give it back at any time.
var metricsPortHeld bool

func TestMain(m *testing.M) {
	if raceDetector {
		// A program under the race detector stays for a second before it exits, for
		// races at its very end; there are hundreds of exits.
		os.Setenv("GORACE", "atexit_sleep_ms=20 "+os.Getenv("GORACE"))
	}
	// Held from beginning to end, so that no test depends on which of the edges
	// that run without a file gets it.
	metricsPort, err := net.Listen("tcp", "127.0.0.1:9090")
	metricsPortHeld = err == nil
	code := m.Run()
	if metricsPortHeld {
		metricsPort.Close()
	}
	if binaries.folder != "" {
		os.RemoveAll(binaries.folder)
	}
	testca.Remove()
	os.Exit(code)
}

// binariesVar names the folder where a test that runs another finds what it has built.
const binariesVar = "RELAYEDGE_TEST_BINARIES"

// binFolder is the folder that holds relayedge and relaycore, built at the first
// call; under the race detector where the tests are.
func binFolder(t testing.TB) string {
	t.Helper()
	if folder := os.Getenv(binariesVar); folder != "" {
		return folder
	}
	binaries.Do(func() {
		if binaries.folder, binaries.err = os.MkdirTemp("", "relayedge-bin-"); binaries.err != nil {
			return
		}
		args := []string{"build", "-o", binaries.folder + string(filepath.Separator)}
		if raceDetector {
			args = append(args, "-race")
		}
		build := exec.Command("go", append(args, "relayedge/cmd/relayedge", "relayedge/cmd/relaycore")...)
		if out, err := build.CombinedOutput(); err != nil {
			binaries.err = fmt.Errorf("go build: %w\n%s", err, out)
		}
	})
	if binaries.err != nil {
		t.Fatal(binaries.err)
	}
	return binaries.folder
}

func binary(t testing.TB, name string) string { return filepath.Join(binFolder(t), name) }

package deploy_test

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// sources copies what the package is made of into a folder.
func sources(t *testing.T, into string) {
	t.Helper()
	err := filepath.WalkDir("..", func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel("..", path)
		if err != nil {
			return err
		}
		if name == ".git" || name == "bin" {
			if entry.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		to := filepath.Join(into, name)
		if entry.IsDir() {
			return os.MkdirAll(to, 0o755)
		}
		info, err := entry.Info()
		if err != nil || !info.Mode().IsRegular() {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return os.WriteFile(to, text, info.Mode())
	})
	if err != nil {
		t.Fatal(err)
	}
}

// A version that dpkg would refuse makes no package; the v of a tag is left out.
func TestPackageVersion(t *testing.T) {
	bash := peer(t, "bash")
	for version, says := range map[string]string{"abc": "VERSION=abc: a package's version begins with a digit", "v": "begins with a digit"} {
		cmd := exec.CommandContext(t.Context(), bash, "package.sh", t.TempDir())
		cmd.Env = append(os.Environ(), "VERSION="+version)
		if said, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(said), says) {
			t.Errorf("%s: %v, %s", version, err, said)
		}
	}
}

// The sources in another folder, by another user's habits, give the same bytes; and
// the package does in a Debian root what a package has to.
func TestPackage(t *testing.T) {
	bash := peer(t, "bash")
	peer(t, "dpkg-deb")
	peer(t, "debootstrap")
	if out, err := exec.CommandContext(t.Context(), "go", "run", tool(t, "NFPM"), "--version").CombinedOutput(); err != nil {
		t.Logf("%s", out)
		missing(t, "nfpm, which go run fetches,")
	}
	const name = "relayedge_1.2.3_%s.deb"
	arch := strings.TrimSpace(run(t, "go", "env", "GOARCH"))
	var deb string
	var first map[string]string
	for i, habit := range []struct {
		folder, umask string
		env           []string
	}{
		{"a", "022", nil},
		{"another/folder with a space", "077", []string{"TZ=Asia/Tokyo", "LC_ALL=C.UTF-8", "GOFLAGS=-tags=nothing"}},
	} {
		folder := filepath.Join(t.TempDir(), habit.folder)
		sources(t, folder)
		out := filepath.Join(folder, "out")
		cmd := exec.CommandContext(t.Context(), bash, "-c", "umask "+habit.umask+"; exec deploy/package.sh out")
		cmd.Dir = folder
		cmd.Env = append(append(os.Environ(), "VERSION=1.2.3", "SOURCE_DATE_EPOCH=1767225600"), habit.env...)
		if said, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, said)
		}
		deb = filepath.Join(out, fmt.Sprintf(name, arch))
		sums := map[string]string{"deb": sum(t, deb)}
		for _, program := range []string{"relayedge", "relaycore"} {
			sums[program] = sum(t, filepath.Join(out, "root/bin", program))
		}
		if i == 0 {
			first = sums
		} else if !maps.Equal(first, sums) {
			t.Errorf("in one folder\n%v\nin another\n%v", first, sums)
		}
		program := filepath.Join(out, "root/bin/relayedge")
		if says := run(t, program, "version"); !strings.HasPrefix(says, "relayedge 1.2.3 ") {
			t.Errorf("version: %q", says)
		}
		text, err := os.ReadFile(program)
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(text, []byte(folder)) {
			t.Error("the binary names the folder that it was built in")
		}
	}
	out, err := exec.CommandContext(t.Context(), bash, "check-deb.sh", deb).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	said := strings.TrimSpace(string(out))
	t.Log(said[strings.LastIndex(said, "\n")+1:])
}

// tool is a program that the Makefile pins.
func tool(t *testing.T, variable string) string {
	t.Helper()
	text, err := os.ReadFile("../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`(?m)^` + variable + ` *= *(\S+)$`).FindSubmatch(text)
	if m == nil {
		t.Fatalf("the Makefile pins no %s", variable)
	}
	return string(m[1])
}

func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), name, args...).Output()
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return string(out)
}

func sum(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%x", sha256.Sum256(text))
}

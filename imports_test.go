package relayedge_test

import (
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// edge is an import: a package of ours, by its folder, and what it imports.
// Ours are written without the module's name.
type edge struct {
	from string
	to   string
	test bool   // in a _test.go file
	file string // where it stands
}

const module = "relayedge"

// within reports whether a package is one of the folders or lies inside one.
func within(pkg string, folders ...string) bool {
	return slices.ContainsFunc(folders, func(folder string) bool {
		return pkg == folder || strings.HasPrefix(pkg, folder+"/")
	})
}

// ours are the folders at the root that hold packages.
var ours = []string{"cmd", "proxy", "relaycore", "admission", "internal", "bench", "deploy"}

// standard reports whether a path is of the standard library: only a module's
// has a dot in its first element.
func standard(pkg string) bool {
	first, _, _ := strings.Cut(pkg, "/")
	return !strings.Contains(first, ".") && !within(pkg, ours...)
}

// onlyIn is a rule that keeps a package or module to some folders; inTests are
// folders whose tests may use it too.
func onlyIn(what string, folders []string, inTests ...string) func(edge) bool {
	return func(e edge) bool {
		return within(e.to, what) && !within(e.from, folders...) && !(e.test && within(e.from, inTests...))
	}
}

// onlyTests is a rule that keeps something out of the programs.
func onlyTests(what string) func(edge) bool {
	return func(e edge) bool { return within(e.to, what) && !e.test }
}

func not(from string, to ...string) func(edge) bool {
	return func(e edge) bool { return within(e.from, from) && within(e.to, to...) }
}

// rules tell what no import may do, tests included unless a rule says otherwise.
var rules = []struct {
	rule   string
	broken func(edge) bool
	madeUp edge // breaks it
	about  string
}{
	{"proxy and relaycore stand below cmd alone: proxy", onlyIn("proxy", []string{"cmd", "proxy"}, "relaycore"), edge{from: "internal/telemetry", to: "proxy/upstream"}, "proxy"},
	{"proxy and relaycore stand below cmd alone: relaycore", onlyIn("relaycore", []string{"cmd", "relaycore"}, "bench"), edge{from: "admission", to: "relaycore/wire", test: true}, "relaycore"},
	{"proxy does not know relaycore", not("proxy", "relaycore"), edge{from: "proxy/certs", to: "relaycore"}, ""},
	{"relaycore does not know proxy; its own tests alone put the edge before it, to hold the relay's limits behind the real one", func(e edge) bool {
		return not("relaycore", "proxy")(e) && !(e.test && e.from == "relaycore")
	}, edge{from: "relaycore", to: "proxy"}, ""},
	{"the tests of what lies inside relaycore do without proxy", func(e edge) bool {
		return within(e.from, "relaycore") && e.from != "relaycore" && within(e.to, "proxy")
	}, edge{from: "relaycore/client", to: "proxy", test: true}, ""},
	{"cmd is the top", onlyIn("cmd", []string{"cmd"}), edge{from: "proxy", to: "cmd/internal/policy"}, "cmd"},
	{"internal is the bottom", not("internal", "cmd", "proxy", "relaycore", "admission"), edge{from: "internal/policyfile", to: "admission"}, ""},
	{"admission takes the standard library, siphash and bart", func(e edge) bool {
		return e.from == "admission" && !e.test && !standard(e.to) && !within(e.to, "github.com/dchest/siphash", "github.com/gaissmai/bart")
	}, edge{from: "admission", to: "internal/telemetry"}, ""},
	{"admission's tests stay beside or below it", not("admission", "cmd", "proxy", "relaycore"), edge{from: "admission", to: "proxy", test: true}, ""},

	{"YAML in policyfile and cmd; the tests of deploy read rules with it", onlyIn("gopkg.in/yaml.v3", []string{"internal/policyfile", "cmd"}, "deploy"), edge{from: "proxy", to: "gopkg.in/yaml.v3"}, "gopkg.in/yaml.v3"},
	{"Prometheus in telemetry and cmd", onlyIn("github.com/prometheus", []string{"internal/telemetry", "cmd"}), edge{from: "relaycore", to: "github.com/prometheus/client_golang/prometheus"}, "github.com/prometheus"},
	{"go-proxyproto in proxyheader", onlyIn("github.com/pires/go-proxyproto", []string{"internal/proxyheader"}), edge{from: "proxy", to: "github.com/pires/go-proxyproto/tlvparse"}, "github.com/pires/go-proxyproto"},
	{"coder/websocket in the client; relaycore's tests may use it", onlyIn("github.com/coder/websocket", []string{"relaycore/client"}, "relaycore"), edge{from: "relaycore", to: "github.com/coder/websocket"}, "github.com/coder/websocket"},
	{"gobwas/ws in the frame parser and the benchmark's plain server; relaycore's tests may use it", onlyIn("github.com/gobwas", []string{"relaycore/websocket", "bench/plain"}, "relaycore"), edge{from: "relaycore", to: "github.com/gobwas/ws"}, ""},
	{"cobra in cmd", onlyIn("github.com/spf13", []string{"cmd"}), edge{from: "internal/policyfile", to: "github.com/spf13/pflag"}, "github.com/spf13/cobra"},
	{"certmagic in certs", onlyIn("github.com/caddyserver", []string{"proxy/certs"}), edge{from: "proxy", to: "github.com/caddyserver/certmagic"}, "github.com/caddyserver/certmagic"},
	{"acmez in certs", onlyIn("github.com/mholt", []string{"proxy/certs"}), edge{from: "cmd/relayedge", to: "github.com/mholt/acmez/v3"}, "github.com/mholt/acmez/v3"},
	{"zap in certs", onlyIn("go.uber.org/zap", []string{"proxy/certs"}), edge{from: "proxy", to: "go.uber.org/zap"}, "go.uber.org/zap"},
	{"siphash in admission", onlyIn("github.com/dchest/siphash", []string{"admission"}), edge{from: "relaycore", to: "github.com/dchest/siphash"}, "github.com/dchest/siphash"},
	{"bart in admission", onlyIn("github.com/gaissmai/bart", []string{"admission"}), edge{from: "proxy", to: "github.com/gaissmai/bart"}, "github.com/gaissmai/bart"},
	{"rueidis in redisstore", onlyIn("github.com/redis/rueidis", []string{"admission/redisstore"}), edge{from: "cmd/relayedge", to: "github.com/redis/rueidis"}, "github.com/redis/rueidis"},
	{"redis_rate, which redisstore is measured beside, in its tests", func(e edge) bool {
		return within(e.to, "github.com/go-redis", "github.com/redis/go-redis") && !(e.test && e.from == "admission/redisstore")
	}, edge{from: "admission/redisstore", to: "github.com/go-redis/redis_rate/v10"}, "github.com/go-redis/redis_rate/v10"},
	{"bbolt in the mailbox", onlyIn("go.etcd.io/bbolt", []string{"relaycore/mailbox"}), edge{from: "relaycore", to: "go.etcd.io/bbolt"}, "go.etcd.io/bbolt"},
	{"x/crypto in the mailbox", onlyIn("golang.org/x/crypto", []string{"relaycore/mailbox"}), edge{from: "relaycore", to: "golang.org/x/crypto/chacha20poly1305"}, "golang.org/x/crypto"},

	{"chromedp in the test browser", onlyIn("github.com/chromedp", []string{"internal/testbrowser"}), edge{from: "internal/status", to: "github.com/chromedp/chromedp", test: true}, "github.com/chromedp/chromedp"},

	{"go-systemd in hostport and sdnotify", onlyIn("github.com/coreos/go-systemd", []string{"internal/hostport", "internal/sdnotify"}), edge{from: "proxy", to: "github.com/coreos/go-systemd/v22/activation"}, "github.com/coreos/go-systemd"},

	{"rapid in tests, and in the suite that stores of limits share", func(e edge) bool {
		return onlyTests("pgregory.net/rapid")(e) && !within(e.from, "admission/limitstest")
	}, edge{from: "admission", to: "pgregory.net/rapid"}, "pgregory.net/rapid"},
	{"redisstore is wired by the commands, and in tests", func(e edge) bool {
		return within(e.to, "admission/redisstore") && !within(e.from, "cmd", "admission/redisstore") && !e.test
	}, edge{from: "proxy/certs", to: "admission/redisstore"}, "admission/redisstore"},
	{"the stores' suite in tests", onlyTests("admission/limitstest"), edge{from: "admission/redisstore", to: "admission/limitstest"}, "admission/limitstest"},
	{"goleak in tests", onlyTests("go.uber.org/goleak"), edge{from: "proxy", to: "go.uber.org/goleak"}, "go.uber.org/goleak"},
	{"testscript in tests", onlyTests("github.com/rogpeppe/go-internal"), edge{from: "cmd/relayedge", to: "github.com/rogpeppe/go-internal/testscript"}, "github.com/rogpeppe/go-internal"},
	{"memconn in tests", onlyTests("internal/memconn"), edge{from: "proxy", to: "internal/memconn"}, "internal/memconn"},
	{"the suite of connections in tests", onlyTests("internal/testconn"), edge{from: "proxy", to: "internal/testconn"}, "internal/testconn"},
	{"the test CA in tests", onlyTests("internal/testca"), edge{from: "proxy/certs", to: "internal/testca"}, "internal/testca"},
	{"the test Redis in tests", onlyTests("internal/testredis"), edge{from: "admission/redisstore", to: "internal/testredis"}, "internal/testredis"},
	{"the test browser in tests", onlyTests("internal/testbrowser"), edge{from: "internal/status", to: "internal/testbrowser"}, "internal/testbrowser"},
	{"the tests' ports in tests, the test CA and the test Redis", func(e edge) bool {
		return onlyTests("internal/testport")(e) && !within(e.from, "internal/testca", "internal/testredis")
	}, edge{from: "proxy", to: "internal/testport"}, "internal/testport"},
	{"the tests' logs in tests, the test CA and the test Redis", func(e edge) bool {
		return onlyTests("internal/testlog")(e) && !within(e.from, "internal/testca", "internal/testredis")
	}, edge{from: "proxy", to: "internal/testlog"}, "internal/testlog"},
	{"miekg/dns in the test CA", onlyIn("github.com/miekg", []string{"internal/testca"}), edge{from: "proxy/certs", to: "github.com/miekg/dns"}, "github.com/miekg/dns"},
	{"testing in tests", func(e edge) bool {
		return within(e.to, "testing") && !e.test && !within(e.from, "internal/memconn", "internal/testbrowser", "internal/testca", "internal/testconn", "internal/testport", "internal/testredis", "admission/limitstest")
	}, edge{from: "proxy", to: "testing/synctest"}, "testing"},
}

func TestImports(t *testing.T) {
	edges := imports(t)
	for _, r := range rules {
		t.Run(r.rule, func(t *testing.T) {
			if !r.broken(r.madeUp) {
				t.Errorf("the rule lets %s import %s", r.madeUp.from, r.madeUp.to)
			}
			if r.about != "" && !slices.ContainsFunc(edges, func(e edge) bool { return within(e.to, r.about) }) {
				t.Errorf("nothing imports %s: the rule holds nothing", r.about)
			}
			for _, e := range edges {
				if r.broken(e) {
					t.Errorf("%s imports %s", e.file, e.to)
				}
			}
		})
	}
}

// imports are those of every Go file here, for whatever system it is.
func imports(t *testing.T) (edges []edge) {
	t.Helper()
	err := filepath.WalkDir(".", func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if name := d.Name(); file != "." && (strings.HasPrefix(name, ".") || strings.HasPrefix(name, "_") || name == "testdata") {
				return filepath.SkipDir
			}
			if _, err := os.Stat(filepath.Join(file, "go.mod")); err == nil && file != "." {
				return filepath.SkipDir // a module of its own
			}
			return nil
		}
		if !strings.HasSuffix(file, ".go") {
			return nil
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		file = filepath.ToSlash(file)
		for _, spec := range parsed.Imports {
			to, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				return err
			}
			edges = append(edges, edge{
				from: path.Dir(file), to: strings.TrimPrefix(to, module+"/"),
				test: strings.HasSuffix(file, "_test.go"), file: file,
			})
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return edges
}

// Every module that our code imports is required by go.mod and accounted for in
// docs/dependencies.md.
func TestDependenciesAreNamed(t *testing.T) {
	doc, err := os.ReadFile("docs/dependencies.md")
	if err != nil {
		t.Fatal(err)
	}
	required := requirements(t)
	direct := map[string]bool{}
	for _, e := range imports(t) {
		if standard(e.to) || within(e.to, append(ours, module)...) {
			continue
		}
		best := ""
		for _, m := range required {
			if within(e.to, m) && len(m) > len(best) {
				best = m
			}
		}
		if best == "" {
			t.Errorf("%s imports %s, which no module of go.mod holds", e.file, e.to)
		}
		direct[best] = true
	}
	if len(direct) < 5 {
		t.Fatalf("only %d modules were found", len(direct))
	}
	for m := range direct {
		if !names(string(doc), m) {
			t.Errorf("docs/dependencies.md does not name %s", m)
		}
	}
	for _, row := range regexp.MustCompile(`(?m)^\| ([a-z0-9.-]+\.[a-z]+/\S+) \|`).FindAllStringSubmatch(string(doc), -1) {
		if !slices.Contains(required, row[1]) {
			t.Errorf("docs/dependencies.md names %s, which go.mod does not require", row[1])
		}
	}
	if names(string(doc), "example.org/made/up") || names("as github.com/a/bc does", "github.com/a/b") {
		t.Error("a module that is not named is found")
	}
}

// names reports whether a text has a module's path as a word of its own.
func names(text, module string) bool {
	wordByte := func(b byte) bool {
		return b == '/' || b == '-' || b == '_' || b >= '0' && b <= '9' || b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z'
	}
	for rest := text; ; {
		i := strings.Index(rest, module)
		if i < 0 {
			return false
		}
		after := rest[i+len(module):]
		if (i == 0 || !wordByte(rest[i-1])) && (after == "" || !wordByte(after[0])) {
			return true
		}
		rest = after
	}
}

// requirements are the modules that go.mod requires, directly or not.
func requirements(t *testing.T) (modules []string) {
	t.Helper()
	src, err := os.ReadFile("go.mod")
	if err != nil {
		t.Fatal(err)
	}
	block := false
	for line := range strings.Lines(string(src)) {
		fields := strings.Fields(line)
		switch {
		case len(fields) == 0:
		case fields[0] == ")":
			block = false
		case fields[0] == "require" && len(fields) > 1 && fields[1] == "(":
			block = true
		case fields[0] == "require" && len(fields) > 2:
			modules = append(modules, fields[1])
		case block:
			modules = append(modules, fields[0])
		}
	}
	return modules
}

package telemetry

import (
	"bytes"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
)

func one(v float64) func(func(string, float64)) {
	return func(emit func(string, float64)) { emit("", v) }
}

// get asks the handler without a connection.
func get(s *Server, path string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	s.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
	return w
}

func TestExposition(t *testing.T) {
	var scrapes atomic.Int64
	s, err := NewServer(Options{Groups: []Group{
		{"relayedge", []Family{
			{Name: "connections", Help: "Open connections.", Kind: Gauge, Label: "listener", Read: func(emit func(string, float64)) {
				emit("public", 2)
				emit("chat \"1\"\n", 0)
			}},
			{Name: "rejections_total", Help: "Refusals and forced ends.", Label: "reason", Read: func(emit func(string, float64)) {
				emit("per_ip_cap", 3)
				emit("drain", 0)
			}},
			{Name: "scrapes_total", Help: "Scrapes.", Read: func(emit func(string, float64)) { emit("", float64(scrapes.Add(1))) }},
			{Name: "handshake_seconds", Help: "TLS handshakes.", Kind: Histogram, ReadHistogram: func() (map[float64]uint64, uint64, float64) {
				return map[float64]uint64{0.1: 1, 1: 3}, 4, 12.5
			}},
		}},
		{"relaycore", []Family{{Name: "sessions", Help: "Sessions.", Kind: Gauge, Read: one(1.5)}}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	golden, err := os.ReadFile(filepath.Join("testdata", "exposition.txt"))
	if err != nil {
		t.Fatal(err)
	}
	w := get(s, "/metrics")
	if w.Code != http.StatusOK || w.Body.String() != string(golden) {
		t.Fatalf("%d\n%s\nwant\n%s", w.Code, w.Body, golden)
	}
	if ct := w.Header().Get("Content-Type"); !strings.HasPrefix(ct, "text/plain; version=0.0.4") {
		t.Error(ct)
	}
	if again := get(s, "/metrics").Body.String(); !strings.Contains(again, "relayedge_scrapes_total 2\n") {
		t.Error("a scrape did not read anew")
	}
}

// process_* stands under its plain name, go_* only if asked for, and nothing else comes along.
func TestProcessFamilies(t *testing.T) {
	for _, row := range []struct{ process, runtime, wantProcess, wantGo bool }{
		{false, false, false, false}, {true, false, true, false}, {true, true, true, true}, {false, true, false, false},
	} {
		s, err := NewServer(Options{
			Groups:  []Group{{"relaycore", []Family{{Name: "x_total", Read: one(0)}}}},
			Process: row.process, GoRuntime: row.runtime,
		})
		if err != nil {
			t.Fatal(err)
		}
		var process, runtime bool
		for line := range strings.Lines(get(s, "/metrics").Body.String()) {
			switch {
			case strings.HasPrefix(line, "process_"):
				process = true
			case strings.HasPrefix(line, "go_"):
				runtime = true
			case !strings.HasPrefix(line, "# ") && !strings.HasPrefix(line, "relaycore_"):
				t.Errorf("%q does not belong here", line)
			}
		}
		if process != row.wantProcess || runtime != row.wantGo {
			t.Errorf("%+v: process %v, go %v", row, process, runtime)
		}
	}
}

func TestRefusedFamilies(t *testing.T) {
	histogram := func() (map[float64]uint64, uint64, float64) { return nil, 0, 0 }
	for name, g := range map[string]Group{
		"namespace":               {"relay-edge", []Family{{Name: "x", Read: one(0)}}},
		"empty namespace":         {"", []Family{{Name: "x", Read: one(0)}}},
		"name":                    {"relayedge", []Family{{Name: "x y", Read: one(0)}}},
		"empty name":              {"relayedge", []Family{{Read: one(0)}}},
		"label":                   {"relayedge", []Family{{Name: "x", Label: "a-b", Read: one(0)}}},
		"reserved label":          {"relayedge", []Family{{Name: "x", Label: "__a", Read: one(0)}}},
		"no Read":                 {"relayedge", []Family{{Name: "x"}}},
		"two Reads":               {"relayedge", []Family{{Name: "x", Read: one(0), ReadHistogram: histogram}}},
		"histogram without Read":  {"relayedge", []Family{{Name: "x", Kind: Histogram}}},
		"histogram with Read":     {"relayedge", []Family{{Name: "x", Kind: Histogram, Read: one(0), ReadHistogram: histogram}}},
		"histogram with a label":  {"relayedge", []Family{{Name: "x", Kind: Histogram, Label: "a", ReadHistogram: histogram}}},
		"unknown kind":            {"relayedge", []Family{{Name: "x", Kind: 3, Read: one(0)}}},
		"negative kind":           {"relayedge", []Family{{Name: "x", Kind: -1, Read: one(0)}}},
		"twice":                   {"relayedge", []Family{{Name: "x", Read: one(0)}, {Name: "x", Read: one(0)}}},
		"twice with other labels": {"relayedge", []Family{{Name: "x", Label: "a", Read: one(0)}, {Name: "x", Label: "b", Read: one(0)}}},
	} {
		if _, err := NewServer(Options{Groups: []Group{g}}); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

// A family that fails takes only its own samples away, and is logged.
func TestFailingFamily(t *testing.T) {
	for name, bad := range map[string]Family{
		"panic":           {Name: "bad", Read: func(func(string, float64)) { panic("out of range") }},
		"histogram panic": {Name: "bad", Kind: Histogram, ReadHistogram: func() (map[float64]uint64, uint64, float64) { panic("out of range") }},
		"twice the same": {Name: "bad", Label: "reason", Read: func(emit func(string, float64)) {
			emit("a", 1)
			emit("a", 2)
		}},
		"not UTF-8": {Name: "bad", Label: "reason", Read: func(emit func(string, float64)) { emit("\xff", 1) }},
	} {
		t.Run(name, func(t *testing.T) {
			var logged bytes.Buffer
			s, err := NewServer(Options{
				Groups: []Group{{"relayedge", []Family{bad, {Name: "good", Read: one(7)}}}},
				Log:    slog.New(slog.NewTextHandler(&logged, nil)),
			})
			if err != nil {
				t.Fatal(err)
			}
			w := get(s, "/metrics")
			if w.Code != http.StatusOK || !strings.Contains(w.Body.String(), "relayedge_good 7\n") {
				t.Errorf("%d\n%s", w.Code, w.Body)
			}
			if !strings.Contains(logged.String(), "Metrics are incomplete") {
				t.Errorf("logged %q", &logged)
			}
		})
	}
}

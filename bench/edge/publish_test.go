package main

import (
	"encoding/xml"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// two runs with a spread, a peer that is dearer, one that is cheaper, one row that
// a peer does not do, and one that is not compared.
func twoRuns() []*results {
	a := made(
		figure{"echo64", "relayedge", []float64{20, 20, 20}},
		figure{"echo64", "haproxy", []float64{30, 32, 34}},
		figure{"echo64", "naive", []float64{10, 12, 14}},
		figure{"refusal", "relayedge", []float64{20, 20, 20}},
		figure{"refusal", "haproxy", []float64{50, 50, 50}},
		figure{"burst", "relayedge", []float64{1, 2, 3}},
	)
	a.LeftOut = []leftOut{{"refusal", "naive", "it has no cap"}}
	b := made(
		figure{"echo64", "relayedge", []float64{20}},
		figure{"echo64", "haproxy", []float64{22}},
		figure{"echo64", "naive", []float64{24}},
	)
	b.LeftOut = a.LeftOut
	return []*results{a, b}
}

func TestTables(t *testing.T) {
	got := tables(twoRuns())
	for _, line := range []string{
		"![What each peer costs, as a ratio to relayedge](benchmarks.svg)",
		"1. 2026-12-01 10:30 UTC: 2 CPUs (Model <A> & B), Linux 6.18, load average 0.00 before it; 3 rounds in the network namespace; engine `loop`; peers from Debian trixie: haproxy 3.0.11, relayedge go1.26.8.",
		"Where several figures stand, they are of these runs, in this order.",
		"| median | relayedge | haproxy | naive |",
		"| --- | --- | --- | --- |",
		"| echo of 1 KB, 64 connections, µs | 20.0 | 32.0, 22.0 | 12.0, 24.0 |",
		"| refused connection, µs | 20.0, – | 50.0, – | – |",
		"| RSS that is left when they have gone, over that before, MB | 2.00, – | – | – |",
		"| ratio to relayedge, median (least to most) | haproxy | naive |",
		"| echo of 1 KB, 64 connections | 1.60 (1.50 to 1.70), 1.10 (1.10 to 1.10) | 0.60 (0.50 to 0.70), 1.20 (1.20 to 1.20) |",
		"| echo64, ratio | 1.15 | 1.40 | 1.60 (haproxy), 1.10 (haproxy) | yes, no | yes, no |",
		"| refusal, ratio | 1.50, – | 2.00, – | 2.50 (haproxy), – | yes, – | yes, – |",
		"- refusal of naive: it has no cap",
	} {
		if strings.Count(got, line+"\n") == 0 {
			t.Errorf("%q is missing in\n%s", line, got)
		}
	}
	if n := strings.Count(got, "it has no cap"); n != 1 {
		t.Errorf("what was left out is said %d times", n)
	}
	if strings.Contains(got, "full handshake") {
		t.Error("a row without figures is shown")
	}
	if got := tables(twoRuns()[1:]); strings.Contains(got, "several figures") {
		t.Error("one run is several")
	}
	if got := tables(nil); got != "" {
		t.Errorf("no run is %q", got)
	}
}

func TestPlaced(t *testing.T) {
	document := "before\n" + partBegins + "\nold\n" + partEnds + "\nafter\n"
	want := strings.ReplaceAll(document, "old", "new")
	if got, err := placed(document, "new\n"); err != nil || got != want {
		t.Errorf("%q, %v", got, err)
	}
	for _, document := range []string{"", partBegins + "\n", partEnds + "\n" + partBegins + "\n"} {
		if _, err := placed(document, "new\n"); err == nil {
			t.Errorf("%q is taken", document)
		}
	}
}

// svg is what of a chart can be counted.
type svg struct {
	bars, spreads, musts, values int
}

// drawn reads a chart to its end.
func drawn(t *testing.T, chart string) (s svg) {
	t.Helper()
	d := xml.NewDecoder(strings.NewReader(chart))
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return s
		}
		if err != nil {
			t.Fatalf("%v in\n%s", err, chart)
		}
		e, is := token.(xml.StartElement)
		if !is {
			continue
		}
		class := ""
		for _, a := range e.Attr {
			switch a.Name.Local {
			case "class":
				class = a.Value
			case "x", "y", "x1", "x2", "y1", "y2", "width", "height":
				if v, err := strconv.ParseFloat(a.Value, 64); err != nil || !(v >= 0 && v <= 5000) {
					t.Errorf("%s has %s=%q", e.Name.Local, a.Name.Local, a.Value)
				}
			}
		}
		switch {
		case e.Name.Local == "rect" && colours[class] != [2]string{}:
			s.bars++
		case class == "spread":
			s.spreads++
		case class == "must":
			s.musts++
		case class == "value":
			s.values++
		}
	}
}

func TestChart(t *testing.T) {
	got := chart(twoRuns())
	// Three ratios in two groups; the legend has two peers and the line of a must.
	if s := drawn(t, got); s != (svg{bars: 3 + 2, spreads: 3, musts: 2 + 1, values: 3 + 3}) {
		t.Errorf("%+v\n%s", s, got)
	}
	for _, part := range []string{
		"prefers-color-scheme: dark", "echo64, haproxy: 1.55 (1.10 to 1.70)", "Model &lt;A&gt; &amp; B", `role="img"`,
		"6 rounds, 2026-12-01; 2 CPUs", ">1.55</text>",
	} {
		if !strings.Contains(got, part) {
			t.Errorf("%q is missing in\n%s", part, got)
		}
	}
	// Hundredfold either way is still inside.
	drawn(t, chart([]*results{made(figure{"echo64", "relayedge", []float64{100}}, figure{"echo64", "haproxy", []float64{1}}, figure{"echo64", "nginx", []float64{10000}})}))
}

func TestPublish(t *testing.T) {
	discardUsage(t)
	folder := t.TempDir()
	file := func(name string) string { return filepath.Join(folder, name) }
	runs := twoRuns()
	for i, name := range []string{"a.json", "b.json"} {
		if err := runs[i].write(file(name)); err != nil {
			t.Fatal(err)
		}
	}
	trial := twoRuns()[0]
	trial.Scale = 0.5
	if err := trial.write(file("trial.json")); err != nil {
		t.Fatal(err)
	}
	document := "# Benchmarks\n" + partBegins + "\n" + partEnds + "\n"
	if err := os.WriteFile(file("doc.md"), []byte(document), 0o600); err != nil {
		t.Fatal(err)
	}
	to := []string{"-document", file("doc.md"), "-chart", file("chart.svg")}
	for _, c := range []struct{ name, want string }{
		{"", "files of runs are wanted"},
		{file("none.json"), "no such file"},
		{file("doc.md"), "invalid character"},
		{file("trial.json"), "for trying"},
	} {
		if err := publish(append(to, strings.Fields(c.name)...)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	if text, _ := os.ReadFile(file("doc.md")); string(text) != document {
		t.Errorf("after refusals the document is %s", text)
	}
	for range 2 { // the second changes nothing
		if err := publish(append(to, file("a.json"), file("b.json"))); err != nil {
			t.Fatal(err)
		}
		text, _ := os.ReadFile(file("doc.md"))
		picture, _ := os.ReadFile(file("chart.svg"))
		if want, _ := placed(document, tables(runs)); string(text) != want || string(picture) != chart(runs) {
			t.Errorf("the document is %s, the chart %s", text, picture)
		}
	}
}

// What docs/benchmarks.md and its chart show is what the runs that are kept say.
func TestPublished(t *testing.T) {
	files, err := filepath.Glob("../testdata/edge-*.json")
	if err != nil {
		t.Fatal(err)
	}
	runs, err := readAll(files)
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile("../../docs/benchmarks.md")
	if err != nil {
		t.Fatal(err)
	}
	if want, err := placed(string(text), tables(runs)); err != nil || string(text) != want {
		t.Errorf("docs/benchmarks.md is not what the runs say: go run ./bench/edge publish bench/testdata/edge-*.json (%v)", err)
	}
	picture, err := os.ReadFile("../../docs/benchmarks.svg")
	if len(runs) == 0 {
		if !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("there is a chart of no run: %v", err)
		}
		return
	}
	if err != nil || string(picture) != chart(runs) {
		t.Errorf("docs/benchmarks.svg is not what the runs say: go run ./bench/edge publish bench/testdata/edge-*.json (%v)", err)
	}
}

func TestBrief(t *testing.T) {
	for _, c := range []struct {
		v    float64
		want string
	}{{1234.6, "1235"}, {99.94, "99.9"}, {9.876, "9.88"}, {0.001, "0.00"}, {-12.34, "-12.3"}} {
		if got := brief(c.v); got != c.want {
			t.Errorf("%v is %s", c.v, got)
		}
	}
}

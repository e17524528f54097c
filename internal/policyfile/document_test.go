package policyfile

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

func TestDocumentKnowsWhatIsWritten(t *testing.T) {
	var g garden
	doc := Parse("g.yaml", []byte("limits:\n  bag_bytes: 5\nponds:\n  north:\n    depth: 3\nbeds:\n  - plant: rose\n"), &g)
	for key, line := range map[string]int{
		"limits": 1, "limits.bag_bytes": 2, "ponds": 3, "ponds.north": 4, "ponds.north.depth": 5, "beds": 6, "beds[0]": 7, "beds[0].plant": 7,
		"name": 0, "limits.stay_secs": 0, "beds[0].rows": 0, "beds[1]": 0,
	} {
		if doc.Line(key) != line || doc.Written(key) != (line > 0) {
			t.Errorf("%s: written %v, line %d, want %d", key, doc.Written(key), doc.Line(key), line)
		}
	}
}

func TestFaultsOfTheCallerJoinTheOthers(t *testing.T) {
	var g garden
	doc := Parse("g.yaml", []byte("open: 7\nlimits:\n  bag_bytes: 5\nbeds:\n  - plant: rose\n"), &g)
	doc.Fault("beds[0].rows", "too %s", "many") // not written: at its section
	doc.Fault("limits.bag_bytes", "too small")
	doc.Fault("ponds.north", "none") // nothing around it is written
	doc.Fault("limits.bag_bytes", "too small")
	want := "g.yaml:1:1: ponds.north: none\n" +
		"g.yaml:1:7: open: \"7\" is not a bool; allowed: true, false\n" +
		"g.yaml:3:14: limits.bag_bytes: too small\n" +
		"g.yaml:5:5: beds[0].rows: too many"
	if got := doc.Err().Error(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	faults, ok := errors.AsType[Faults](doc.Err())
	if !ok || faults[2] != (Fault{"g.yaml", 3, 14, "limits.bag_bytes", "too small"}) {
		t.Errorf("%#v", faults)
	}
}

func TestClean(t *testing.T) {
	for _, row := range []struct{ src, clean, unclean string }{
		{"limits: {bag_bytes: x}", "limits.stay_secs beds limit", "limits limits.bag_bytes"},
		{"beds: [{plant: a}, {plant: b, rows: 0}]", "beds[0] limits", "beds beds[1] beds[1].rows"},
		{"limits: 3", "beds", "limits limits.bag_bytes"},
		{"limts: {}", "beds name", "limits limits.bag_bytes"},
		{"limits: {bagbytes: 3}", "beds limits.stay_secs", "limits limits.bag_bytes"},
		{"name: @", "", "name limits beds"},
		{"- a", "", "name limits"},
		{"", "name limits beds ponds.p", ""},
	} {
		var g garden
		doc := Parse("g.yaml", []byte(row.src), &g)
		for key := range strings.FieldsSeq(row.clean) {
			if !doc.Clean(key) {
				t.Errorf("%q: %s is not clean", row.src, key)
			}
		}
		for key := range strings.FieldsSeq(row.unclean) {
			if doc.Clean(key) {
				t.Errorf("%q: %s is clean", row.src, key)
			}
		}
	}
}

func TestFaultsArePrintedForPeople(t *testing.T) {
	f := Fault{File: "a\x1b.yaml", Line: 3, Column: 4, Key: "x\n.y", Problem: "says \"no\"\u202e \xff"}
	if got, want := f.String(), `a\x1b.yaml:3:4: x\n.y: says "no"\u202e \xff`; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if got, want := (Fault{File: "a.yaml", Problem: "too large"}).String(), "a.yaml: too large"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

func TestRubbishIsReportedWithinBounds(t *testing.T) {
	var b strings.Builder
	for i := range 5_000 {
		fmt.Fprintf(&b, "stay_secs_or_another_%d: 1\n", i)
	}
	var g garden
	faults := Parse("g.yaml", []byte(b.String()), &g).Err().(Faults)
	if lines := strings.Split(faults.Error(), "\n"); len(lines) != maxPrinted+1 || lines[maxPrinted] != "g.yaml: and 4900 more faults" {
		t.Errorf("%d lines, the last %q", len(lines), lines[len(lines)-1])
	}
	// Near keys are not looked for where nobody reads.
	if faults[maxPrinted-1].Problem == "unknown key" || faults[maxPrinted].Problem != "unknown key" {
		t.Errorf("%q, then %q", faults[maxPrinted-1].Problem, faults[maxPrinted].Problem)
	}
	long := strings.Repeat("ä", 10_000)
	_, got := read("open: " + long)
	if len(got) != 1 || len(got[0]) > 300 {
		t.Errorf("a long value is repeated in %d bytes", len(got[0]))
	}
	_, got = read("limits: {watch: " + long + "}")
	if len(got) != 1 || len(got[0]) > 500 {
		t.Errorf("a long value is repeated in %d bytes", len(got[0]))
	}
	_, got = read(long + ": 1")
	if len(got) != 1 || len(got[0]) > 500 {
		t.Errorf("a long key is repeated in %d bytes", len(got[0]))
	}
}

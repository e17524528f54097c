package main

import (
	"math"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

// made is a run with figures of some rows, by proxy and round.
func made(figures ...figure) *results {
	return &results{
		Date:    time.Date(2026, 12, 1, 10, 30, 0, 0, time.UTC),
		Machine: machine{CPU: "Model <A> & B", CPUs: 2, Kernel: "6.18"},
		Engine:  "loop", Rounds: 3, Scale: 1, Where: "network namespace", Peers: "Debian trixie",
		Versions: map[string]string{"relayedge": "go1.26.8", "haproxy": "3.0.11"},
		Figures:  figures,
	}
}

func TestSpread(t *testing.T) {
	for _, c := range []struct {
		values []float64
		want   spread
	}{
		{[]float64{4}, spread{4, 4, 4, 1}},
		{[]float64{9, 1, 2}, spread{2, 1, 9, 3}},
		{[]float64{9, 1, 2, 4}, spread{3, 1, 9, 4}},
	} {
		if got := spreadOf(c.values); got != c.want {
			t.Errorf("%v: %v", c.values, got)
		}
	}
	values := []float64{3, 1, 2}
	if spreadOf(values); !slices.Equal(values, []float64{3, 1, 2}) {
		t.Error("rounds are put into another order")
	}
}

func TestPaired(t *testing.T) {
	for _, c := range []struct{ peer, own, want []float64 }{
		{[]float64{20, 45}, []float64{10, 15}, []float64{2, 3}},
		{[]float64{20, 45, 7}, []float64{10, 15}, []float64{2, 3}},
		{[]float64{20, 45}, []float64{0, 15}, []float64{3}},
		{nil, []float64{1}, nil},
	} {
		if got := paired(c.peer, c.own); !slices.Equal(got, c.want) {
			t.Errorf("%v over %v: %v", c.peer, c.own, got)
		}
	}
}

func TestRatios(t *testing.T) {
	a := made(
		figure{"echo64", "naive", []float64{30, 30, 30}},
		figure{"echo64", "nginx", []float64{20, 33, 36}},
		figure{"echo64", "haproxy", []float64{13.5, 26.2, 41.7}},
		figure{"echo64", "relayedge", []float64{10, 20, 30}},
		figure{"handshake", "relayedge", []float64{10, 20, 30}},
		figure{"handshake", "hitch", []float64{11, 22, 33}},
		figure{"burst", "hitch", []float64{1}}, // not compared
		figure{"burst", "relayedge", []float64{1}},
	)
	var got []string
	for _, c := range ratios(a) {
		got = append(got, c.String())
	}
	want := []string{
		"RATIO op=handshake peer=hitch median=1.10 min=1.10 max=1.10 rounds=3",
		"RATIO op=echo64 peer=haproxy median=1.35 min=1.31 max=1.39 rounds=3",
		"RATIO op=echo64 peer=nginx median=1.65 min=1.20 max=2.00 rounds=3",
		"RATIO op=echo64 peer=naive median=1.50 min=1.00 max=3.00 rounds=3",
	}
	if !slices.Equal(got, want) {
		t.Errorf("%s", strings.Join(got, "\n"))
	}
	b := made(figure{"echo64", "relayedge", []float64{10}}, figure{"echo64", "nginx", []float64{50}})
	for _, c := range ratios(a, b) {
		if c.op == "echo64" && c.peer == "nginx" && c.spread != (spread{1.825, 1.2, 5, 4}) {
			t.Errorf("over two runs: %+v", c.spread)
		}
	}
}

func TestResultsFile(t *testing.T) {
	r := made(figure{"echo64", "relayedge", []float64{10.5}})
	r.LeftOut = []leftOut{{"refusal", "hitch", "no cap"}}
	r.add("echo64", "relayedge", 11)
	r.add("echo64", "nginx", 12)
	if got := r.values("echo64", "relayedge"); !slices.Equal(got, []float64{10.5, 11}) {
		t.Errorf("two rounds are %v", got)
	}
	file := filepath.Join(t.TempDir(), "run.json")
	if err := r.write(file); err != nil {
		t.Fatal(err)
	}
	got, err := read(file)
	if err != nil || !reflect.DeepEqual(got, r) {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestUnsoundResults(t *testing.T) {
	for _, c := range []struct {
		r    *results
		want string
	}{
		{made(), "no figures"},
		{made(figure{"dance", "nginx", []float64{1}}), `no row "dance"`},
		{made(figure{"echo64", "nginx", nil}), "values are wanted"},
		{made(figure{"echo64", "nginx", []float64{math.Inf(1)}}), "values are wanted"},
	} {
		if err := c.r.sound(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v", c.r.Figures, err)
		}
	}
}

// Each target at its very value, and just below.
func TestTargets(t *testing.T) {
	for _, c := range []struct {
		op         string
		must, goal float64
	}{
		{"handshake", 1.10, 1.30},
		{"mlkem", 1.05, 1.20},
		{"resumed", 1.10, 1.30},
		{"echo64", 1.15, 1.40},
		{"echo1000", 1.25, 1.50},
		{"paced", 1.10, 1.50},
		{"refusal", 1.5, 2.0},
		{"download", 1.2, 1.5},
		{"upload", 1.2, 1.5},
		{"idle", 2.5, 4},
	} {
		for _, at := range []struct {
			ratio     float64
			held, met bool
		}{
			{c.must - 0.001, false, false}, {c.must, true, false}, {c.goal - 0.001, true, false}, {c.goal, true, true},
		} {
			r := made(figure{c.op, "relayedge", []float64{1}}, figure{c.op, "nginx", []float64{at.ratio}})
			v := r.verdicts()[0]
			if v.op != c.op || v.name != "ratio" || v.held != at.held || v.met != at.met {
				t.Errorf("%g: %s", at.ratio, v)
			}
		}
	}
}

func TestVerdicts(t *testing.T) {
	one := func(row, proxy string, v float64) figure { return figure{row, proxy, []float64{v}} }
	for _, c := range []struct {
		name string
		r    *results
		want []string
	}{
		{"the best of the judged peers decides", made(one("echo64", "relayedge", 10), one("echo64", "haproxy", 14), one("echo64", "nginx", 12), one("echo64", "naive", 5)),
			[]string{"TARGET op=echo64 by=nginx ratio=1.20 must=1.15 held=yes goal=1.40 met=no"}},
		{"without judged peers nothing decides", made(one("echo64", "relayedge", 10), one("echo64", "naive", 20)), nil},
		{"idle has a ratio and a figure of its own", made(one("idle", "relayedge", 8), one("idle", "hitch", 56)),
			[]string{"TARGET op=idle by=hitch ratio=7.00 must=2.50 held=yes goal=4.00 met=yes", "TARGET op=idle KB=8.00 must=10 held=yes goal=7 met=no"}},
		{"idle is at most 10 KB", made(one("idle", "relayedge", 10.01)), []string{"TARGET op=idle KB=10.01 must=10 held=no goal=7 met=no"}},
		{"idle CPU", made(one("idle_cpu", "relayedge", 1)), []string{"TARGET op=idle_cpu percent=1.00 must=1 held=yes goal=1 met=yes"}},
		{"fair: twice what it is alone", made(one("fair_alone", "relayedge", 100), one("fair_beside", "relayedge", 200), one("fair_beside", "nginx", 150)),
			[]string{"TARGET op=fairness by=twice_alone p99_us=200 must=200 held=yes"}},
		{"not fair", made(one("fair_alone", "relayedge", 100), one("fair_beside", "relayedge", 201)),
			[]string{"TARGET op=fairness by=twice_alone p99_us=201 must=200 held=no"}},
		{"fair: what the best peer does", made(one("fair_alone", "relayedge", 100), one("fair_beside", "relayedge", 300), one("fair_beside", "haproxy", 900), one("fair_beside", "nginx", 350), one("fair_beside", "naive", 250)),
			[]string{"TARGET op=fairness by=nginx p99_us=300 must=350 held=yes"}},
		{"fairness takes both figures", made(one("fair_alone", "relayedge", 100)), nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			var got []string
			for _, v := range c.r.verdicts() {
				got = append(got, v.String())
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("%s", strings.Join(got, "\n"))
			}
		})
	}
}

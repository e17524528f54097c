package main

import (
	"fmt"
	"slices"
)

// verdict holds one figure of a run against what it has to be.
type verdict struct {
	op        string
	name      string // what the figure is
	value     string
	by        string // whose figure decides: the best peer, or what sets the limit; empty for ours alone
	must      string
	goal      string // empty where there is none
	held, met bool   // the must, and the goal
}

func (v verdict) String() string {
	line := "TARGET op=" + v.op
	if v.by != "" {
		line += " by=" + v.by
	}
	line += " " + v.name + "=" + v.value + " must=" + v.must + " held=" + yes(v.held)
	if v.goal != "" {
		line += " goal=" + v.goal + " met=" + yes(v.met)
	}
	return line
}

func yes(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

// verdicts are one for each target of which there are figures. The best of the
// judged peers is the one whose ratio is lowest.
func (r *results) verdicts() []verdict {
	var all []verdict
	for _, row := range rows {
		if best, ok := closest(ratios(r), row.name); ok {
			all = append(all, verdict{
				op: row.name, name: "ratio", value: fmt.Sprintf("%.2f", best.median), by: best.peer,
				must: fmt.Sprintf("%.2f", row.must), held: best.median >= row.must,
				goal: fmt.Sprintf("%.2f", row.goal), met: best.median >= row.goal,
			})
		}
		if own := r.values(row.name, ours); row.most > 0 && own != nil {
			m := spreadOf(own).median
			all = append(all, verdict{
				op: row.name, name: unitWord(row.unit), value: fmt.Sprintf("%.2f", m),
				must: fmt.Sprint(row.most), held: m <= row.most,
				goal: fmt.Sprint(row.wish), met: m <= row.wish,
			})
		}
	}
	if v, ok := r.fairness(); ok {
		all = append(all, v)
	}
	return all
}

// closest is the judged peer with the lowest ratio in a row.
func closest(all []ratio, op string) (ratio, bool) {
	var best ratio
	for _, c := range all {
		if c.op == op && slices.Contains(judged, c.peer) && (best.peer == "" || c.median < best.median) {
			best = c
		}
	}
	return best, best.peer != ""
}

// fairness allows a paced client beside bulk streams twice what it waits alone, or
// what it waits with the best of the peers, whichever is more.
func (r *results) fairness() (verdict, bool) {
	alone, beside := r.values("fair_alone", ours), r.values("fair_beside", ours)
	if alone == nil || beside == nil {
		return verdict{}, false
	}
	allowed, by := 2*spreadOf(alone).median, "twice_alone"
	best, name := 0.0, ""
	for _, peer := range judged {
		if v := r.values("fair_beside", peer); v != nil {
			if m := spreadOf(v).median; name == "" || m < best {
				best, name = m, peer
			}
		}
	}
	if best > allowed {
		allowed, by = best, name
	}
	m := spreadOf(beside).median
	return verdict{
		op: "fairness", name: "p99_us", value: fmt.Sprintf("%.0f", m), by: by,
		must: fmt.Sprintf("%.0f", allowed), held: m <= allowed,
	}, true
}

// unitWord is a unit as a word of a line that programs read.
func unitWord(unit string) string {
	switch unit {
	case "%":
		return "percent"
	case "µs":
		return "us"
	}
	return unit
}

package main

import (
	"fmt"
	"slices"
)

// verdict holds one figure of a run against what it has to be.
type verdict struct {
	op        string
	against   string // what it is compared with, as name=value; empty for a figure alone
	figure    string // as name=value
	must      string
	goal      string // empty where there is none
	held, met bool   // the must, and the goal
}

func (v verdict) String() string {
	line := "TARGET op=" + v.op
	if v.against != "" {
		line += " " + v.against
	}
	line += " " + v.figure + " must=" + v.must + " held=" + yes(v.held)
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
				op: row.name, against: "best=" + best.peer, figure: fmt.Sprintf("ratio=%.2f", best.median),
				must: fmt.Sprintf("%.2f", row.must), held: best.median >= row.must,
				goal: fmt.Sprintf("%.2f", row.goal), met: best.median >= row.goal,
			})
		}
		if own := r.values(row.name, ours); row.most > 0 && own != nil {
			m := spreadOf(own).median
			all = append(all, verdict{
				op: row.name, figure: fmt.Sprintf("%s=%.2f", unitWord(row.unit), m),
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
	allowed, against := 2*spreadOf(alone).median, "twice_alone"
	best, name := 0.0, ""
	for _, peer := range judged {
		if v := r.values("fair_beside", peer); v != nil {
			if m := spreadOf(v).median; name == "" || m < best {
				best, name = m, peer
			}
		}
	}
	if best > allowed {
		allowed, against = best, name
	}
	m := spreadOf(beside).median
	return verdict{
		op: "fairness", against: "best=" + against, figure: fmt.Sprintf("p99_us=%.0f", m),
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

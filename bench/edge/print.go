package main

import (
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strings"
	"text/tabwriter"
)

// head says what the figures are of.
func (r *results) head(out io.Writer) {
	m := r.Machine
	fmt.Fprintf(out, "%d CPUs (%s), Linux %s, load average %.2f; %s\n", m.CPUs, m.CPU, m.Kernel, m.Load, r.Date.Format("2006-01-02 15:04 MST"))
	fmt.Fprintf(out, "peers from %s, in the %s; engine %s; %s\n", r.Peers, r.Where, r.Engine, r.versions())
	for _, p := range peers {
		if _, runs := r.Versions[p.name]; runs && p.note != "" {
			fmt.Fprintf(out, "%s: %s\n", p.name, p.note)
		}
	}
	if m.Load > 0.5 {
		fmt.Fprintln(out, "the machine is busy: figures of a busy machine mean little")
	}
	if r.Scale != 1 {
		fmt.Fprintf(out, "scale %g: this is for trying, not for publishing\n", r.Scale)
	}
}

func (r *results) versions() string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(r.Versions)) {
		all = append(all, name+" "+r.Versions[name])
	}
	return strings.Join(all, ", ")
}

// progress says what the last round has found in some rows.
func (r *results) progress(out io.Writer, round int, names []string) {
	for _, name := range names {
		row, _ := rowNamed(name)
		line := fmt.Sprintf("round %d  %-11s", round+1, name)
		for _, proxy := range r.proxies() {
			if v := r.values(name, proxy); len(v) > 0 {
				line += fmt.Sprintf("  %s %.4g", proxy, v[len(v)-1])
			}
		}
		fmt.Fprintln(out, line, row.unit)
	}
}

// print is the report of a run: medians and spread, what was left out, ratios, targets.
func (r *results) print(out io.Writer) {
	table := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	fmt.Fprintf(table, "\nmedian (least to most)\t\t%s\n", strings.Join(r.proxies(), "\t"))
	for _, row := range rows {
		line, some := row.name+"\t"+row.unit, false
		for _, proxy := range r.proxies() {
			line += "\t"
			if v := r.values(row.name, proxy); v != nil {
				s := spreadOf(v)
				line += fmt.Sprintf("%s (%s to %s)", brief(s.median), brief(s.least), brief(s.most))
				some = true
			}
		}
		if some {
			fmt.Fprintln(table, line)
		}
	}
	table.Flush()
	fmt.Fprintln(out)
	for _, l := range r.LeftOut {
		fmt.Fprintln(out, l)
	}
	for _, c := range ratios(r) {
		fmt.Fprintln(out, c)
	}
	for _, v := range r.verdicts() {
		fmt.Fprintln(out, v)
	}
}

// brief has three figures, or all that stand before the point.
func brief(v float64) string {
	switch a := math.Abs(v); {
	case a >= 100:
		return fmt.Sprintf("%.0f", v)
	case a >= 10:
		return fmt.Sprintf("%.1f", v)
	default:
		return fmt.Sprintf("%.2f", v)
	}
}

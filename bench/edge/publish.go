package main

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
)

// What stands between these two lines of a document is ours to write.
const (
	partBegins = "<!-- what follows is written by: go run ./bench/edge publish -->"
	partEnds   = "<!-- end of what is written -->"
)

// publish puts runs into the document and the chart. From no run at all it makes
// an empty part and no chart.
func publish(args []string) error {
	flags := flag.NewFlagSet("edge publish", flag.ContinueOnError)
	document := flags.String("document", "docs/benchmarks.md", "where the tables go")
	picture := flags.String("chart", "docs/benchmarks.svg", "where the chart goes")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() == 0 {
		return errors.New("publish: files of runs are wanted")
	}
	runs, err := readAll(flags.Args())
	if err != nil {
		return err
	}
	text, err := os.ReadFile(*document)
	if err != nil {
		return err
	}
	written, err := placed(string(text), tables(runs))
	if err != nil {
		return fmt.Errorf("%s: %w", *document, err)
	}
	if err := os.WriteFile(*picture, []byte(chart(runs)), 0o644); err != nil {
		return err
	}
	return os.WriteFile(*document, []byte(written), 0o644)
}

func readAll(files []string) (runs []*results, err error) {
	for _, file := range files {
		r, err := read(file)
		if err != nil {
			return nil, err
		}
		if r.Scale != 1 {
			return nil, fmt.Errorf("%s: a run of scale %g is for trying, not for publishing", file, r.Scale)
		}
		runs = append(runs, r)
	}
	return runs, nil
}

// placed puts a part into a document, between its two lines.
func placed(document, part string) (string, error) {
	before, rest, begins := strings.Cut(document, partBegins+"\n")
	_, after, ends := strings.Cut(rest, partEnds+"\n")
	if !begins || !ends {
		return "", fmt.Errorf("the lines %q and %q are wanted", partBegins, partEnds)
	}
	return before + partBegins + "\n" + part + partEnds + "\n" + after, nil
}

// tables are the runs for a reader: what they ran on, figures, ratios, targets.
func tables(runs []*results) string {
	if len(runs) == 0 {
		return ""
	}
	var b strings.Builder
	b.WriteString("\n![What each peer costs, as a ratio to relayedge](benchmarks.svg)\n\n")
	for i, r := range runs {
		m := r.Machine
		fmt.Fprintf(&b, "%d. %s: %d CPUs (%s), Linux %s, load average %.2f before it; %d rounds in the %s; engine `%s`; peers from %s: %s.\n",
			i+1, r.Date.Format("2006-01-02 15:04 MST"), m.CPUs, m.CPU, m.Kernel, m.Load, r.Rounds, r.Where, r.Engine, r.Peers, r.versions())
	}
	if len(runs) > 1 {
		b.WriteString("\nWhere several figures stand, they are of these runs, in this order.\n")
	}
	names := proxiesOf(runs)
	b.WriteString("\n")
	heading(&b, "median", names)
	for _, row := range rows {
		line(&b, row.what+", "+row.unit, names, func(proxy string) string {
			return byRun(runs, func(r *results) string {
				v := r.values(row.name, proxy)
				if v == nil {
					return ""
				}
				return brief(spreadOf(v).median)
			})
		})
	}
	others := names[:0:0]
	for _, name := range names {
		if name != ours {
			others = append(others, name)
		}
	}
	b.WriteString("\n")
	heading(&b, "ratio to relayedge, median (least to most)", others)
	for _, row := range rows {
		line(&b, row.what, others, func(proxy string) string {
			return byRun(runs, func(r *results) string {
				q := paired(r.values(row.name, proxy), r.values(row.name, ours))
				if !row.compared() || len(q) == 0 {
					return ""
				}
				s := spreadOf(q)
				return fmt.Sprintf("%.2f (%.2f to %.2f)", s.median, s.least, s.most)
			})
		})
	}
	targetTable(&b, runs)
	omissions(&b, runs)
	b.WriteString("\n")
	return b.String()
}

func heading(b *strings.Builder, first string, names []string) {
	fmt.Fprintf(b, "| %s | %s |\n|%s\n", first, strings.Join(names, " | "), strings.Repeat(" --- |", len(names)+1))
}

// line is a row of a table, unless it is empty.
func line(b *strings.Builder, first string, names []string, cell func(proxy string) string) {
	cells, some := make([]string, len(names)), false
	for i, name := range names {
		cells[i] = cell(name)
		some = some || cells[i] != ""
		if cells[i] == "" {
			cells[i] = "–"
		}
	}
	if some {
		fmt.Fprintf(b, "| %s | %s |\n", first, strings.Join(cells, " | "))
	}
}

// byRun is what each run has, in order, or what all of them have; nothing if none
// has anything.
func byRun(runs []*results, of func(*results) string) string {
	all, some := make([]string, len(runs)), false
	for i, r := range runs {
		all[i] = of(r)
		some = some || all[i] != ""
		if all[i] == "" {
			all[i] = "–"
		}
	}
	if !some {
		return ""
	}
	if slices.Max(all) == slices.Min(all) {
		all = all[:1]
	}
	return strings.Join(all, ", ")
}

// targetTable has a row for each target of the first run; each run is held against it.
func targetTable(b *strings.Builder, runs []*results) {
	first := runs[0].verdicts()
	if len(first) == 0 {
		return
	}
	b.WriteString("\n| target | must | goal | what stands | must held | goal met |\n| --- | --- | --- | --- | --- | --- |\n")
	for _, target := range first {
		of := func(say func(verdict) string) string {
			text := byRun(runs, func(r *results) string {
				for _, v := range r.verdicts() {
					if v.op == target.op && v.name == target.name {
						return say(v)
					}
				}
				return ""
			})
			return cmp.Or(text, "–")
		}
		fmt.Fprintf(b, "| %s, %s | %s | %s | %s | %s | %s |\n", target.op, target.name,
			of(func(v verdict) string { return v.must }),
			of(func(v verdict) string { return v.goal }),
			of(func(v verdict) string {
				if v.by == "" {
					return v.value
				}
				return v.value + " (" + v.by + ")"
			}),
			of(func(v verdict) string { return yes(v.held) }),
			of(func(v verdict) string {
				if v.goal == "" {
					return ""
				}
				return yes(v.met)
			}))
	}
}

func omissions(b *strings.Builder, runs []*results) {
	seen := make(map[leftOut]bool)
	for _, r := range runs {
		for _, l := range r.LeftOut {
			if !seen[l] {
				if len(seen) == 0 {
					b.WriteString("\nLeft out:\n\n")
				}
				seen[l] = true
				fmt.Fprintf(b, "- %s of %s: %s\n", l.Op, l.Proxy, l.Why)
			}
		}
	}
}

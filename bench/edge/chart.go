package main

import (
	"encoding/xml"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

// The chart's measures, in its own units.
const (
	chartWidth = 760
	labels     = 150 // left of the bars
	figures    = 52  // right of them
	barHeight  = 11
	barStep    = 14
	groupGap   = 12
	headHeight = 58
	footHeight = 44
)

// colours are the peers', on a light and on a dark ground.
var colours = map[string][2]string{
	"haproxy": {"#1f6feb", "#58a6ff"},
	"nginx":   {"#1a7f37", "#3fb950"},
	"hitch":   {"#bc4c00", "#f0883e"},
	"naive":   {"#6e7781", "#8b949e"},
	"stream":  {"#8250df", "#bc8cff"},
}

// chart is an SVG of all ratios over the rounds of all runs, of which there is one at
// least. Its axis is logarithmic
// and a bar begins at 1, which is relayedge: twice as dear is as long as half as dear,
// on the other side.
func chart(runs []*results) string {
	all := ratios(runs...)
	least, most := 0.8, 2.0
	groups := make(map[string][]ratio)
	for _, c := range all {
		least, most = min(least, c.least), max(most, c.most)
		groups[c.op] = append(groups[c.op], c)
	}
	x := func(v float64) float64 {
		const room = chartWidth - labels - figures
		return labels + room*math.Log(v/least)/math.Log(most/least)
	}
	height := headHeight + footHeight
	for _, group := range groups {
		height += barStep*len(group) + groupGap
	}
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" role="img" aria-labelledby="title about">`+"\n", chartWidth, height)
	fmt.Fprintf(&b, "<title id=\"title\">%s</title>\n<desc id=\"about\">%s</desc>\n", escaped("What each peer costs, as a ratio to relayedge"),
		escaped("For each operation and peer: the peer's CPU time or memory over relayedge's of the same round; the median, and a line from the least to the most."))
	style(&b, proxiesOf(runs))
	fmt.Fprintf(&b, `<rect class="ground" width="%d" height="%d"/>`+"\n", chartWidth, height)
	fmt.Fprintf(&b, `<text class="head" x="12" y="20">%s</text>`+"\n", escaped("Cost of each peer, as a ratio to relayedge (1 is relayedge; more is dearer)"))
	legend(&b, runs)
	bottom := height - footHeight
	for _, tick := range []float64{0.25, 0.5, 1, 1.5, 2, 3, 4, 6, 8, 12, 16} {
		if tick < least || tick > most {
			continue
		}
		class := "grid"
		if tick == 1 {
			class = "one"
		}
		fmt.Fprintf(&b, `<line class="%s" x1="%.1f" x2="%.1f" y1="%d" y2="%d"/>`+"\n", class, x(tick), x(tick), headHeight-6, bottom)
		fmt.Fprintf(&b, `<text class="tick" x="%.1f" y="%d">%g</text>`+"\n", x(tick), bottom+14, tick)
	}
	y := headHeight
	for _, row := range rows {
		group := groups[row.name]
		if len(group) == 0 {
			continue
		}
		below := y + barStep*len(group)
		fmt.Fprintf(&b, `<text class="label" x="%d" y="%d">%s</text>`+"\n", labels-10, (y+below)/2+3, escaped(row.name))
		for _, c := range group {
			bar(&b, c, x, y)
			y += barStep
		}
		if row.must < most {
			fmt.Fprintf(&b, `<line class="must" x1="%.1f" x2="%.1f" y1="%d" y2="%d"/>`+"\n", x(row.must), x(row.must), y-barStep*len(group)-3, y)
		}
		y += groupGap
	}
	fmt.Fprintf(&b, `<text class="foot" x="12" y="%d">%s</text>`+"\n", height-10, escaped(chartFoot(runs)))
	b.WriteString("</svg>\n")
	return b.String()
}

func bar(b *strings.Builder, c ratio, x func(float64) float64, y int) {
	from, to := min(x(1), x(c.median)), max(x(1), x(c.median))
	fmt.Fprintf(b, `<rect class="%s" x="%.1f" y="%d" width="%.1f" height="%d"><title>%s</title></rect>`+"\n",
		escaped(c.peer), from, y, max(to-from, 1), barHeight, escaped(fmt.Sprintf("%s, %s: %.2f (%.2f to %.2f)", c.op, c.peer, c.median, c.least, c.most)))
	middle := float64(y) + barHeight/2.0
	fmt.Fprintf(b, `<line class="spread" x1="%.1f" x2="%.1f" y1="%.1f" y2="%.1f"/>`+"\n", x(c.least), x(c.most), middle, middle)
	fmt.Fprintf(b, `<text class="value" x="%.1f" y="%.1f">%.2f</text>`+"\n", max(to, x(c.most))+5, middle+3.5, c.median)
}

func legend(b *strings.Builder, runs []*results) {
	at := labels
	for _, name := range proxiesOf(runs) {
		if name == ours {
			continue
		}
		fmt.Fprintf(b, `<rect class="%s" x="%d" y="32" width="11" height="11"/><text class="value" x="%d" y="41.5">%s</text>`+"\n",
			escaped(name), at, at+16, escaped(name))
		at += 30 + 8*len(name)
	}
	fmt.Fprintf(b, `<line class="must" x1="%d" x2="%d" y1="31" y2="44"/><text class="value" x="%d" y="41.5">%s</text>`+"\n", at+5, at+5, at+12, escaped("what the best of them has to reach"))
}

// chartFoot says what the figures are of.
func chartFoot(runs []*results) string {
	var dates []string
	rounds := 0
	for _, r := range runs {
		if date := r.Date.Format(time.DateOnly); !slices.Contains(dates, date) {
			dates = append(dates, date)
		}
		rounds += r.Rounds
	}
	m := runs[0].Machine
	return fmt.Sprintf("CPU time; idle: memory. Median and spread of %d rounds, %s; %d CPUs (%s), Linux %s.", rounds, strings.Join(dates, " and "), m.CPUs, m.CPU, m.Kernel)
}

func style(b *strings.Builder, names []string) {
	b.WriteString("<style>\n" +
		"text { font: 11px system-ui, sans-serif; fill: #1f2328; }\n" +
		".head { font-size: 14px; font-weight: 600; }\n" +
		".label { text-anchor: end; font-size: 12px; }\n" +
		".tick { text-anchor: middle; }\n" +
		".foot { font-size: 10px; fill: #59636e; }\n" +
		".ground { fill: #ffffff; }\n" +
		".grid { stroke: #d1d9e0; }\n" +
		".one { stroke: #1f2328; stroke-width: 1.5; }\n" +
		".spread { stroke: #1f2328; }\n" +
		".must { stroke: #cf222e; stroke-width: 1.5; stroke-dasharray: 3 2; }\n")
	dark := "@media (prefers-color-scheme: dark) {\n" +
		"text { fill: #f0f6fc; }\n.foot { fill: #9198a1; }\n.ground { fill: #0d1117; }\n.grid { stroke: #3d444d; }\n" +
		".one, .spread { stroke: #f0f6fc; }\n.must { stroke: #ff7b72; }\n"
	for _, name := range names {
		if c, has := colours[name]; has {
			fmt.Fprintf(b, ".%s { fill: %s; }\n", name, c[0])
			dark += fmt.Sprintf(".%s { fill: %s; }\n", name, c[1])
		}
	}
	b.WriteString(dark + "}\n</style>\n")
}

func escaped(text string) string {
	var b strings.Builder
	xml.EscapeText(&b, []byte(text)) // a Builder takes all
	return b.String()
}

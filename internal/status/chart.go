package status

import (
	"fmt"
	"strings"
)

// A chart is chartWide times chartHigh: a unit a second, the moment at its right.
const (
	chartWide = 3600
	chartHigh = 1000
	chartTop  = 960 // of the highest value
)

// chart shows columns of the history.
type chart struct {
	Title string
	Lines []line
}

// line is one column. ID names it in the page, for the script.
type line struct {
	ID, Name  string
	Points    string // of an SVG polyline
	Now, Most string
}

// charts are those of the page. Those of counters show how much came a second.
func charts(s Status) []chart {
	h := s.History
	opens := make([]uint64, len(h.Connections))
	for i, n := range h.Connections {
		opens[i] = uint64(max(n, 0))
	}
	perSecond := func(n uint64) string { return tenths(n) + "/s" }
	bytes := func(n uint64) string { return size(n/10) + "/s" }
	drawn := func(title string, of []chartColumn, write func(uint64) string) chart {
		return draw(s, title, of, write)
	}
	return []chart{
		drawn("Open connections", []chartColumn{{"connections", "open", opens}}, count[uint64]),
		drawn("New and refused", []chartColumn{{"accepted", "new", rates(s, h.Accepted)}, {"rejections", "refused or cut", rates(s, h.Rejections)}}, perSecond),
		drawn("Bytes", []chartColumn{{"bytes_in", "in", rates(s, h.BytesIn)}, {"bytes_out", "out", rates(s, h.BytesOut)}}, bytes),
	}
}

type chartColumn struct {
	id, name string
	values   []uint64
}

// rates are tenths of a count a second.
func rates(s Status, counts []uint64) []uint64 {
	rates := make([]uint64, len(counts))
	before := s.Started.Unix()
	for i, n := range counts {
		at := s.History.At[i]
		if i == 0 && at-before > int64(s.History.StepSecs) {
			before = at - int64(s.History.StepSecs) // the one before it is not in the hour any longer
		}
		rates[i] = n * 10 / uint64(max(at-before, 1))
		before = at
	}
	return rates
}

// draw makes lines of columns, on one scale.
func draw(s Status, title string, columns []chartColumn, write func(uint64) string) chart {
	most := uint64(0)
	for _, c := range columns {
		for _, v := range c.values {
			most = max(most, v)
		}
	}
	ch := chart{Title: title}
	for _, c := range columns {
		l := line{ID: c.id, Name: c.name, Now: write(0), Most: write(0)}
		var points []string
		highest := uint64(0)
		for i, v := range c.values {
			x := min(max(chartWide-(s.At.Unix()-s.History.At[i]), 0), chartWide)
			y := chartHigh - v*chartTop/max(most, 1)
			points = append(points, fmt.Sprintf("%d,%d", x, y))
			highest = max(highest, v)
			l.Now = write(v)
		}
		l.Points, l.Most = strings.Join(points, " "), write(highest)
		ch.Lines = append(ch.Lines, l)
	}
	return ch
}

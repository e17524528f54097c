package status

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// bars are the heights of a line of the hour in a terminal.
var bars = []rune("▁▂▃▄▅▆▇█")

// Lines writes the document for a terminal that is wide characters wide and takes
// lines lines; 0: it takes all. What does not fit is cut off. Nothing in it is
// obeyed by a terminal.
func Lines(s Status, wide, lines int) []string {
	var all []string
	add := func(format string, args ...any) { all = append(all, fmt.Sprintf(format, args...)) }
	block := func(rows [][]string) {
		if len(rows) > 1 {
			add("")
			all = append(all, columns(rows)...)
		}
	}
	state := "ready"
	if !s.Ready {
		state = "NOT READY: " + s.NotReady
	}
	add("relayedge %s  %s  up %s  %s UTC", s.Version, state, span(s.UptimeSecs), clock(s.At))
	add("")
	add("connections %s, %s new in the last minute; handshakes in flight %s", count(s.Connections.Open), count(s.Connections.Accepted.Minute), count(s.Handshakes.InFlight))
	add("bytes in the last minute: in %s, out %s", size(s.Bytes.In.Minute), size(s.Bytes.Out.Minute))
	if h := s.History.Connections; len(h) > 0 {
		add("the last hour %s at most %s", sparkline(h, 36), count(slices.Max(h)))
	}

	rejections := [][]string{{"REFUSED OR CUT", ">minute", ">hour", ">in all"}}
	for _, r := range s.Rejections {
		if r.Total > 0 {
			rejections = append(rejections, []string{r.Reason, count(r.Minute), count(r.Hour), count(r.Total)})
		}
	}
	if len(rejections) == 1 {
		rejections = append(rejections, []string{"nobody so far"})
	}
	block(rejections)

	limits := [][]string{{"LIMIT", ">now", ">in force", ">used"}}
	for _, l := range s.Limits {
		if l.Used == nil {
			continue
		}
		used := ""
		if !l.Off {
			used = fmt.Sprintf("%d %%", percent(l))
		}
		limits = append(limits, []string{l.Limit, count(*l.Used), inForce(l), used})
	}
	block(limits)
	if s.Capped.Hosts > 0 || s.Capped.Sites > 0 {
		add("%s", capped(s.Capped))
		if !s.Capped.Shown {
			add("%s", hiddenNetworks)
		}
	}
	networks := [][]string{{"NETWORK AT ITS CAPS", ">hosts", ">sites", ">connections"}}
	for _, n := range s.Capped.Networks {
		networks = append(networks, []string{n.Network, count(n.Hosts), count(n.Sites), count(n.Connections)})
	}
	block(networks)
	if s.Capped.More > 0 {
		add("and %s", numbered(s.Capped.More, "more network", "more networks"))
	}

	upstreams := [][]string{{"UPSTREAM", "address", "state", ">connections"}}
	for _, u := range s.Upstreams {
		for _, a := range u.Addresses {
			upstreams = append(upstreams, []string{u.Name, a.Address, upDown(a.Up), count(a.Connections)})
		}
	}
	block(upstreams)
	certificates := [][]string{{"CERTIFICATE", "from", "expires"}}
	for _, c := range s.Certificates {
		text, _ := expires(c)
		if c.NotAfter != nil {
			text += ", " + day(*c.NotAfter)
		}
		certificates = append(certificates, []string{strings.Join(c.Names, ", "), c.Source, text})
	}
	block(certificates)
	listeners := [][]string{{"LISTENER", "address", "protocol", "TLS", ">connections"}}
	for _, l := range s.Listeners {
		address := l.Address
		if l.Leaving {
			address += " (removed)"
		}
		listeners = append(listeners, []string{l.Name, address, l.Protocol, l.TLS, count(l.Open)})
	}
	block(listeners)

	for i, l := range all {
		all[i] = Line(l, wide)
	}
	if lines > 0 && len(all) > lines {
		all = all[:lines]
	}
	return all
}

// columns sets rows in columns; those whose head begins with > are set right.
func columns(rows [][]string) (lines []string) {
	rights := make([]bool, len(rows[0]))
	for i := range rows[0] {
		rows[0][i], rights[i] = strings.CutPrefix(rows[0][i], ">")
	}
	wide := make([]int, len(rows[0]))
	for _, row := range rows {
		for i, text := range row {
			wide[i] = max(wide[i], utf8.RuneCountInString(text))
		}
	}
	for _, row := range rows {
		var b strings.Builder
		for i, text := range row {
			pad := strings.Repeat(" ", wide[i]-utf8.RuneCountInString(text))
			if i > 0 {
				b.WriteString("  ")
			}
			if rights[i] {
				b.WriteString(pad + text)
			} else {
				b.WriteString(text + pad)
			}
		}
		lines = append(lines, strings.TrimRight(b.String(), " "))
	}
	return lines
}

// cut leaves at most wide characters of a line; 0: all.
func cut(line string, wide int) string {
	if wide <= 0 || utf8.RuneCountInString(line) <= wide {
		return line
	}
	return string([]rune(line)[:wide-1]) + "…"
}

// sparkline draws values in at most n bars, each the highest of those it stands for.
func sparkline(values []int, n int) string {
	n = min(n, len(values))
	tall := make([]int, n)
	most := 1
	for i := range n {
		for _, v := range values[i*len(values)/n : (i+1)*len(values)/n] {
			tall[i] = max(tall[i], v)
		}
		most = max(most, tall[i])
	}
	var b strings.Builder
	for _, v := range tall {
		b.WriteRune(bars[max(v, 0)*(len(bars)-1)/most])
	}
	return b.String()
}

// Line is a text as a line of a terminal that is wide characters wide; 0: it takes all.
func Line(text string, wide int) string { return cut(plain(text), wide) }

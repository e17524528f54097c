package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"time"
)

// results are what a run has measured, as its file holds it.
type results struct {
	Date     time.Time         `json:"date"`
	Machine  machine           `json:"machine"`
	Engine   string            `json:"engine"`
	Rounds   int               `json:"rounds"`
	Scale    float64           `json:"scale"`    // of all counts and periods; 1 is what is published
	Where    string            `json:"where"`    // the namespace or the host
	Peers    string            `json:"peers"`    // the system that they come from
	Versions map[string]string `json:"versions"` // by proxy
	Figures  []figure          `json:"figures"`
	LeftOut  []leftOut         `json:"left_out,omitempty"`
}

type machine struct {
	CPU    string  `json:"cpu"`
	CPUs   int     `json:"cpus"`
	Kernel string  `json:"kernel"`
	Load   float64 `json:"load"` // average of the minute before
}

// figure is a row's values of one proxy, by round.
type figure struct {
	Row    string    `json:"row"`
	Proxy  string    `json:"proxy"`
	Values []float64 `json:"values"`
}

// leftOut is what a proxy does not do.
type leftOut struct {
	Op    string `json:"op"`
	Proxy string `json:"proxy"`
	Why   string `json:"why"`
}

func (l leftOut) String() string {
	return fmt.Sprintf("LEFT OUT op=%s peer=%s: %s", l.Op, l.Proxy, l.Why)
}

// add adds a round's value to a row of a proxy.
func (r *results) add(row, proxy string, value float64) {
	for i := range r.Figures {
		if f := &r.Figures[i]; f.Row == row && f.Proxy == proxy {
			f.Values = append(f.Values, value)
			return
		}
	}
	r.Figures = append(r.Figures, figure{row, proxy, []float64{value}})
}

// values are a row's of a proxy, by round, or none.
func (r *results) values(row, proxy string) []float64 {
	for _, f := range r.Figures {
		if f.Row == row && f.Proxy == proxy {
			return f.Values
		}
	}
	return nil
}

// proxies are those with figures, ours first, then the judged, then the others.
func (r *results) proxies() []string {
	var names []string
	has := func(name string) bool {
		return slices.ContainsFunc(r.Figures, func(f figure) bool { return f.Proxy == name })
	}
	for _, name := range append([]string{ours}, judged...) {
		if has(name) {
			names = append(names, name)
		}
	}
	for _, f := range r.Figures {
		if !slices.Contains(names, f.Proxy) {
			names = append(names, f.Proxy)
		}
	}
	return names
}

// spread is what several rounds come to.
type spread struct {
	median, least, most float64
	rounds              int
}

// spreadOf wants at least one value. Of an even number, the median is the mean of
// the two in the middle.
func spreadOf(values []float64) spread {
	v := slices.Sorted(slices.Values(values))
	n := len(v)
	return spread{(v[(n-1)/2] + v[n/2]) / 2, v[0], v[n-1], n}
}

// ratio is a peer's figure over ours.
type ratio struct {
	op, peer string
	spread
}

func (r ratio) String() string {
	return fmt.Sprintf("RATIO op=%s peer=%s median=%.2f min=%.2f max=%.2f rounds=%d", r.op, r.peer, r.median, r.least, r.most, r.rounds)
}

// paired divides the peer's values by ours, round by round.
func paired(peer, own []float64) []float64 {
	var quotients []float64
	for i := range min(len(peer), len(own)) {
		if own[i] > 0 {
			quotients = append(quotients, peer[i]/own[i])
		}
	}
	return quotients
}

// ratios are those of all rows that are compared, over the rounds of all runs.
func ratios(runs ...*results) []ratio {
	var all []ratio
	for _, row := range rows {
		if !row.compared() {
			continue
		}
		for _, peer := range proxiesOf(runs) {
			if peer == ours {
				continue
			}
			var quotients []float64
			for _, r := range runs {
				quotients = append(quotients, paired(r.values(row.name, peer), r.values(row.name, ours))...)
			}
			if len(quotients) > 0 {
				all = append(all, ratio{row.name, peer, spreadOf(quotients)})
			}
		}
	}
	return all
}

// proxiesOf are those of several runs, in the order of one.
func proxiesOf(runs []*results) []string {
	var together results
	for _, r := range runs {
		together.Figures = append(together.Figures, r.Figures...)
	}
	return together.proxies()
}

func (r *results) write(file string) error {
	b, err := json.MarshalIndent(r, "", "\t")
	if err != nil {
		return err
	}
	return os.WriteFile(file, append(b, '\n'), 0o644)
}

// read reads a run's file and refuses what could not be shown.
func read(file string) (*results, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	r := new(results)
	if err := json.Unmarshal(b, r); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	if err := r.sound(); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return r, nil
}

func (r *results) sound() error {
	for _, f := range r.Figures {
		if _, known := rowNamed(f.Row); !known {
			return fmt.Errorf("there is no row %q", f.Row)
		}
		if len(f.Values) == 0 || slices.ContainsFunc(f.Values, func(v float64) bool { return math.IsNaN(v) || math.IsInf(v, 0) }) {
			return fmt.Errorf("row %s of %s: values are wanted", f.Row, f.Proxy)
		}
	}
	if len(r.Figures) == 0 {
		return errors.New("there are no figures")
	}
	return nil
}

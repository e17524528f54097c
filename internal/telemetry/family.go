package telemetry

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

// Kind is what a family measures.
type Kind int

const (
	Counter Kind = iota // only rises
	Gauge               // rises and falls
	Histogram
)

// Family is one metric family. Read is called at each scrape, from any
// goroutine, and emits one sample for each value of the label; a family without
// a label emits one sample with an empty value.
type Family struct {
	Name  string // without the namespace: "connections_total"
	Help  string
	Kind  Kind
	Label string // the only label, or empty
	Read  func(emit func(labelValue string, value float64))
	// ReadHistogram is used in place of Read for a Histogram: cumulative counts
	// by upper bound, the count of all observations and their sum.
	ReadHistogram func() (buckets map[float64]uint64, count uint64, sum float64)
}

// Group is a set of families under one namespace.
type Group struct {
	Namespace string
	Families  []Family
}

// collector reads one family at each scrape.
type collector struct {
	family Family
	desc   *prometheus.Desc
}

// newCollector refuses a family that could not be served as it is described.
func newCollector(namespace string, f Family) (*collector, error) {
	name := namespace + "_" + f.Name
	switch {
	case !validName(namespace) || !validName(f.Name):
		return nil, fmt.Errorf("metric %q: not a valid name", name)
	case f.Label != "" && (!validName(f.Label) || len(f.Label) > 1 && f.Label[:2] == "__"):
		return nil, fmt.Errorf("metric %q: label %q is not a valid name", name, f.Label)
	case f.Kind == Histogram && (f.ReadHistogram == nil || f.Read != nil || f.Label != ""):
		return nil, fmt.Errorf("metric %q: a histogram has ReadHistogram, and neither Read nor a label", name)
	case f.Kind != Histogram && (f.Read == nil || f.ReadHistogram != nil):
		return nil, fmt.Errorf("metric %q: a counter or gauge has Read alone", name)
	case f.Kind < Counter || f.Kind > Histogram:
		return nil, fmt.Errorf("metric %q: unknown kind %d", name, f.Kind)
	}
	var labels []string
	if f.Label != "" {
		labels = []string{f.Label}
	}
	return &collector{f, prometheus.NewDesc(name, f.Help, labels, nil)}, nil
}

func (c *collector) Describe(ch chan<- *prometheus.Desc) { ch <- c.desc }

// Collect reports a panic of the family's function as an error of the scrape:
// it runs on a goroutine of the registry, where it would end the process.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	defer func() {
		if p := recover(); p != nil {
			ch <- prometheus.NewInvalidMetric(c.desc, fmt.Errorf("panic: %v", p))
		}
	}()
	if c.family.Kind == Histogram {
		buckets, count, sum := c.family.ReadHistogram()
		ch <- prometheus.MustNewConstHistogram(c.desc, count, sum, buckets)
		return
	}
	kind := prometheus.CounterValue
	if c.family.Kind == Gauge {
		kind = prometheus.GaugeValue
	}
	c.family.Read(func(labelValue string, value float64) {
		var values []string
		if c.family.Label != "" {
			values = []string{labelValue}
		}
		ch <- prometheus.MustNewConstMetric(c.desc, kind, value, values...)
	})
}

package policyfile

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

// garden is a policy with every kind of key.
type garden struct {
	Name   string            `key:"name" default:"eden" doc:"what it is called"`
	Open   bool              `key:"open" default:"true" doc:"whether people may enter"`
	Beds   []bed             `key:"beds" default:"[]" doc:"where plants stand"`
	Ponds  map[string]pond   `key:"ponds" doc:"ponds by name"`
	Signs  map[string]string `key:"signs" doc:"texts by place"`
	Limits limits            `key:"limits" doc:"how much of everything"`
}

type bed struct {
	Plant string `key:"plant" required:"true" doc:"what grows"`
	Light string `key:"light" default:"sun" enum:"sun|shade|none" doc:"what it stands in"`
	Rows  int    `key:"rows" default:"3" min:"1" max:"9" doc:"rows in the bed"`
}

type pond struct {
	Depth   int            `key:"depth" default:"2" min:"1" max:"40" doc:"metres"`
	Inflow  []netip.Prefix `key:"inflow" default:"[192.0.2.0/24]" doc:"where water comes from"`
	MapFile string         `key:"map_file" default:"" path:"true" doc:"a drawing"`
}

type Common struct {
	MaxVisitors int `key:"max_visitors" default:"100" min:"1" doc:"people in all"`
	PerFamily   int `key:"per_family" default:"64" min:"0" max:"max_visitors" zero:"off" doc:"people of one family"`
}

type limits struct {
	Common    `key:",inline"`
	PerSchool int      `key:"per_school" default:"max_visitors/10" min:"2" max:"max_visitors" doc:"people of one school"`
	StaySecs  int      `key:"stay_secs" default:"300" min:"60" max:"86400" doc:"time one may stay"`
	BagBytes  int      `key:"bag_bytes" default:"4096" min:"0" zero:"no bags" doc:"the largest bag"`
	FlowBPS   int      `key:"flow_bps" default:"1024" min:"1" doc:"water"`
	Offset    int      `key:"offset" default:"-5" min:"-10" max:"10" doc:"may be negative"`
	Observe   []string `key:"observe" default:"[]" enum:"per_family|per_school" doc:"limits that only count"`
	Watch     []string `key:"watch" default:"[gate, pond]" doc:"where guards stand"`
}

// keyed is a fault of one key, as the packages behind a policy give it.
type keyed struct{ key, problem string }

func (k keyed) Error() string     { return k.problem }
func (k keyed) PolicyKey() string { return k.key }

func (c Common) Validate() error {
	if c.MaxVisitors == 13 {
		return keyed{"max_visitors", "max_visitors: 13 brings bad luck"}
	}
	return nil
}

func (b *bed) Validate() error {
	var faults []error
	if b.Plant == "nettle" {
		faults = append(faults, keyed{"plant", "nettles\nsting"})
	}
	if b.Plant == "nettle" && b.Light == "none" {
		faults = append(faults, errors.New("nothing grows without light"))
	}
	return errors.Join(faults...)
}

func (g garden) Validate() error {
	if len(g.Beds) > 2 {
		return keyed{"beds[2]", "there is room for two"}
	}
	return nil
}

// read parses src and returns the faults as they are printed.
func read(src string) (garden, []string) {
	var g garden
	if err := Parse("g.yaml", []byte(src), &g).Err(); err != nil {
		return g, strings.Split(err.Error(), "\n")
	}
	return g, nil
}

// wantFaults compares the beginnings of faults.
func wantFaults(t *testing.T, src string, want ...string) {
	t.Helper()
	_, got := read(src)
	if !slices.EqualFunc(got, want, func(g, w string) bool { return strings.HasPrefix(g, w) }) {
		if len(src) > 200 {
			src = src[:200] + "…"
		}
		t.Errorf("%q\ngives:\n%s\nwant:\n%s", src, strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

package policyfile

import (
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestDescribe(t *testing.T) {
	var got []string
	for _, k := range Describe(&garden{}) {
		got = append(got, k.Path+" ("+k.Type+") "+k.Facts()+": "+k.Doc)
	}
	want := []string{
		"name (text) default eden: what it is called",
		"open (bool) default true: whether people may enter",
		"beds (list of section) default []: where plants stand",
		"beds[].plant (text) required: what grows",
		"beds[].light (text) default sun, sun | shade | none: what it stands in",
		"beds[].rows (integer) default 3, 1 to 9: rows in the bed",
		"ponds (map of section) default {}: ponds by name",
		"ponds.*.depth (integer) default 2, 1 to 40: metres",
		"ponds.*.inflow (list of text) default [192.0.2.0/24]: where water comes from",
		`ponds.*.map_file (text) default "": a drawing`,
		"signs (map of text) default {}: texts by place",
		"limits (section) section: how much of everything",
		"limits.max_visitors (integer) default 100, at least 1: people in all",
		"limits.per_family (integer) default 64, 0 to max_visitors, 0 = off: people of one family",
		"limits.per_school (integer) default max_visitors/10, 2 to max_visitors: people of one school",
		"limits.stay_secs (integer) default 300 seconds, 60 to 86400: time one may stay",
		"limits.bag_bytes (integer) default 4096 bytes, at least 0, 0 = no bags: the largest bag",
		"limits.flow_bps (integer) default 1024 bytes a second, at least 1: water",
		"limits.offset (integer) default -5, -10 to 10: may be negative",
		"limits.observe (list of text) default [], any of per_family | per_school: limits that only count",
		"limits.watch (list of text) default [gate, pond]: where guards stand",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestKeyFactsOfOneChoice(t *testing.T) {
	keys := Describe(struct {
		A string `key:"a" default:"tcp" enum:"tcp" doc:"d"`
		B string `key:"b" required:"true" enum:"x|y" doc:"d"`
	}{})
	if keys[0].Facts() != "default tcp, only tcp" || keys[1].Facts() != "required, x | y" {
		t.Errorf("%q and %q", keys[0].Facts(), keys[1].Facts())
	}
}

// A contradiction in the tags is found by any test that reads them.
func TestTagsThatContradict(t *testing.T) {
	type self struct {
		Again []struct {
			Map map[string][]struct{} `key:"m" doc:"d"`
		} `key:"a" default:"[]" doc:"d"`
	}
	type loop struct {
		L []loop `key:"l" default:"[]" doc:"d"`
	}
	Describe(self{})
	for name, v := range map[string]any{
		"no struct":            3,
		"nothing":              nil,
		"contains itself":      loop{},
		"exported without key": struct{ A int }{},
		"key that is not set": struct {
			a int `key:"a" default:"1" doc:"d"`
		}{},
		"empty key": struct {
			A int `key:"" default:"1" doc:"d"`
		}{},
		"key twice": struct {
			A int `key:"a" default:"1" doc:"d"`
			B int `key:"a" default:"1" doc:"d"`
		}{},
		"no doc": struct {
			A int `key:"a" default:"1"`
		}{},
		"neither default": struct {
			A int `key:"a" doc:"d"`
		}{},
		"both": struct {
			A int `key:"a" default:"1" required:"true" doc:"d"`
		}{},
		"list without default": struct {
			A []int `key:"a" doc:"d"`
		}{},
		"list without brackets": struct {
			A []int `key:"a" default:"1" doc:"d"`
		}{},
		"section with default": struct {
			A struct{} `key:"a" default:"x" doc:"d"`
		}{},
		"map with default": struct {
			A map[string]int `key:"a" default:"[]" doc:"d"`
		}{},
		"map of other keys": struct {
			A map[int]int `key:"a" doc:"d"`
		}{},
		"duration": struct {
			A time.Duration `key:"a" default:"1" doc:"d"`
		}{},
		"float": struct {
			A float64 `key:"a" default:"1" doc:"d"`
		}{},
		"pointer": struct {
			A *int `key:"a" default:"1" doc:"d"`
		}{},
		"default out of range": struct {
			A int `key:"a" default:"0" min:"1" doc:"d"`
		}{},
		"default no number": struct {
			A int `key:"a" default:"x" doc:"d"`
		}{},
		"default no bool": struct {
			A bool `key:"a" default:"yes" doc:"d"`
		}{},
		"default not of enum": struct {
			A string `key:"a" default:"x" enum:"y|z" doc:"d"`
		}{},
		"element not of enum": struct {
			A []string `key:"a" default:"[y, x]" enum:"y|z" doc:"d"`
		}{},
		"default no network": struct {
			A netip.Prefix `key:"a" default:"x" doc:"d"`
		}{},
		"element no network": struct {
			A []netip.Prefix `key:"a" default:"[x]" doc:"d"`
		}{},
		"enum of numbers": struct {
			A int `key:"a" default:"1" enum:"1|2" doc:"d"`
		}{},
		"range of a text": struct {
			A string `key:"a" default:"" min:"1" doc:"d"`
		}{},
		"bound of a later key": struct {
			A int `key:"a" default:"1" max:"b" doc:"d"`
			B int `key:"b" default:"1" doc:"d"`
		}{},
		"bound of a text": struct {
			B string `key:"b" default:"1" doc:"d"`
			A int    `key:"a" default:"1" max:"b" doc:"d"`
		}{},
		"divided by nothing": struct {
			B int `key:"b" default:"1" doc:"d"`
			A int `key:"a" default:"b/0" doc:"d"`
		}{},
	} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				if recover() == nil {
					t.Error("the tags were taken")
				}
			}()
			shapeOf(v)
		})
	}
}

func TestNearest(t *testing.T) {
	keys := []string{"max_connections", "max_connections_per_ip", "deny", "limits", "bind", "tls"}
	for name, want := range map[string]string{
		"max_conections": "max_connections", "max-connections": "max_connections", "MaxConnections": "max_connections",
		"max_connections_per_pi": "max_connections_per_ip", "maxconnectionsperip": "max_connections_per_ip",
		"dney": "deny", "limit": "limits", "limts": "limits", "bin": "bind", "tsl": "tls", "TLS": "tls",
		"zebra": "", "": "", "x": "", "deny_file": "", strings.Repeat("max_connections", 100): "",
	} {
		if got := Nearest(name, keys); got != want {
			t.Errorf("%q is near %q, want %q", name, got, want)
		}
	}
	for _, row := range []struct {
		a, b string
		want int
	}{{"", "", 0}, {"a", "", 1}, {"abc", "abc", 0}, {"abc", "acb", 1}, {"abc", "abd", 1}, {"abc", "xabc", 1}, {"abc", "cab", 2}, {"abcdefgh", "", 5}} {
		if got := distance(row.a, row.b, 5); got != row.want {
			t.Errorf("%q to %q is %d, want %d", row.a, row.b, got, row.want)
		}
	}
}

func TestEncode(t *testing.T) {
	g, faults := read(`name: "yes"
beds: [{plant: "a: b"}, {plant: x y, light: none}]
ponds: {north: {}, "1": {inflow: []}}
signs: {gate: "#1", "a b": "say \"<hi>\" \\"}
`)
	if faults != nil {
		t.Fatal(faults)
	}
	want := `name: "yes"
open: true
beds:
  - plant: "a: b"
    light: sun
    rows: 3
  - plant: "x y"
    light: none
    rows: 3
ponds:
  "1":
    depth: 2
    inflow: []
    map_file: ""
  north:
    depth: 2
    inflow: ["192.0.2.0/24"]
    map_file: ""
signs:
  "a b": "say \"<hi>\" \\"
  gate: "#1"
limits:
  max_visitors: 100
  per_family: 64
  per_school: 10
  stay_secs: 300
  bag_bytes: 4096
  flow_bps: 1024
  offset: -5
  observe: []
  watch: [gate, pond]
`
	if got := string(Encode(g)); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	again, faults := read(want)
	if faults != nil || !reflect.DeepEqual(g, again) {
		t.Errorf("read back: %v\n%+v\n%+v", faults, again, g)
	}
}

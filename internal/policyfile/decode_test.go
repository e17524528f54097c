package policyfile

import (
	"fmt"
	"net/netip"
	"reflect"
	"strings"
	"testing"
)

func TestNothingWrittenIsAllDefaults(t *testing.T) {
	want := garden{
		Name: "eden", Open: true, Beds: []bed{}, Ponds: map[string]pond{}, Signs: map[string]string{},
		Limits: limits{
			Common: Common{100, 64}, PerSchool: 10, StaySecs: 300, BagBytes: 4096, FlowBPS: 1024, Offset: -5,
			Observe: []string{}, Watch: []string{"gate", "pond"},
		},
	}
	got := garden{Name: "what was there before", Beds: []bed{{}}}
	Defaults(&got)
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	if parsed, faults := read("limits: {}"); faults != nil || !reflect.DeepEqual(parsed, want) {
		t.Errorf("an empty section: %v %+v", faults, parsed)
	}
}

func TestEverythingWritten(t *testing.T) {
	got, faults := read(`name: "a: b"
open: false
beds:
  - {plant: rose, light: shade, rows: 9}
  - plant: lily
ponds:
  north: {depth: 40, inflow: [2001:db8::/32, 10.0.0.0/8], map_file: maps/north.png}
  a.b: {map_file: /abs}
  south:
signs: {gate: welcome}
limits: {max_visitors: 10, per_family: 0, per_school: 2, stay_secs: 86400, bag_bytes: 0, flow_bps: 1, offset: -10, observe: [per_school], watch: []}
`)
	want := garden{
		Name: "a: b",
		Beds: []bed{{"rose", "shade", 9}, {"lily", "sun", 3}},
		Ponds: map[string]pond{
			"north": {40, []netip.Prefix{netip.MustParsePrefix("2001:db8::/32"), netip.MustParsePrefix("10.0.0.0/8")}, "maps/north.png"},
			"a.b":   {2, []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}, "/abs"},
			"south": {2, []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}, ""},
		},
		Signs:  map[string]string{"gate": "welcome"},
		Limits: limits{Common{10, 0}, 2, 86400, 0, 1, -10, []string{"per_school"}, []string{}},
	}
	if faults != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%v\ngot  %+v\nwant %+v", faults, got, want)
	}
}

// What is not written follows the range that another key moves; what is written must fit it.
func TestRangesThatMove(t *testing.T) {
	for _, row := range []struct {
		max, family, school int
	}{{1000, 64, 100}, {640, 64, 64}, {60, 60, 6}, {10, 10, 2}, {2, 2, 2}} {
		g, faults := read(fmt.Sprintf("limits: {max_visitors: %d}", row.max))
		if faults != nil || g.Limits.PerFamily != row.family || g.Limits.PerSchool != row.school {
			t.Errorf("max_visitors %d: per_family %d, per_school %d, %v; want %d, %d", row.max, g.Limits.PerFamily, g.Limits.PerSchool, faults, row.family, row.school)
		}
	}
	wantFaults(t, "limits: {max_visitors: 60, per_family: 61}",
		"g.yaml:1:40: limits.per_family: 61 is out of range; allowed: 0 to max_visitors (60), 0 = off")
	wantFaults(t, "limits: {per_family: 101}", "g.yaml:1:22: limits.per_family: 101 is out of range; allowed: 0 to max_visitors (100), 0 = off")
	wantFaults(t, "limits: {max_visitors: 1}", "g.yaml:1:1: limits.per_school: no value is left for it; allowed: 2 to max_visitors (1)")
	// The order in the file does not matter.
	wantFaults(t, "limits: {per_family: 61, max_visitors: 60}", "g.yaml:1:22: limits.per_family: 61 is out of range")
	// A faulty key does not make faults of those that hang on it.
	wantFaults(t, "limits: {max_visitors: many, per_family: 5000}", `g.yaml:1:24: limits.max_visitors: "many" is not a plain whole number`)
	wantFaults(t, "limits: {max_visitors: 0}", "g.yaml:1:24: limits.max_visitors: 0 is out of range; allowed: at least 1")
}

func TestIntegersArePlain(t *testing.T) {
	for _, row := range []struct{ written, want string }{
		{"0", "0 is out of range; allowed: 60 to 86400"},
		{"-1", "-1 is out of range; allowed: 60 to 86400"},
		{"59", "59 is out of range"},
		{"86401", "86401 is out of range"},
		{"4294967296", "4294967296 is out of range"},
		{"9223372036854775807", "9223372036854775807 is out of range"},
		{"9223372036854775808", "9223372036854775808 is too large a number; allowed: 60 to 86400"},
		{"-9223372036854775809", "-9223372036854775809 is too large a number"},
		{strings.Repeat("9", 400), strings.Repeat("9", 60) + "… is too large a number"},
		{"1e30", `"1e30" is not a plain whole number; allowed: 60 to 86400`},
		{"1e3", `"1e3" is not a plain whole number; write 1000; allowed`},
		{"1e999999999", `"1e999999999" has a unit; write plain seconds`},
		{"1.5", `"1.5" is not a plain whole number; allowed`},
		{"60.0", `"60.0" is not a plain whole number; write 60`},
		{"0123", `"0123" is not a plain whole number; write it without the leading zero`},
		{"00", `"00" is not a plain whole number; write it without the leading zero`},
		{"-0", `"-0" is not a plain whole number; write 0`},
		{"+60", `"+60" is not a plain whole number; write 60`},
		{"1_000", `"1_000" is not a plain whole number; write 1000`},
		{"0x10", `"0x10" is not a plain whole number; write 16`},
		{"0o17", `"0o17" is not a plain whole number; write 15`},
		{"0b11", `"0b11" is not a plain whole number; write 3`},
		{".inf", `".inf" is not a plain whole number; allowed`},
		{".nan", `".nan" is not a plain whole number; allowed`},
		{`"60"`, `"60" is a text; write the number without quotes`},
		{`'60'`, `"60" is a text; write the number without quotes`},
		{`"30s"`, `"30s" is a text, not a whole number`},
		{`""`, `"" is a text, not a whole number`},
		{"30s", `"30s" has a unit; write plain seconds: 30`},
		{"5m", `"5m" has a unit; write plain seconds: 300`},
		{"1500ms", `"1500ms" has a unit; write plain whole seconds`},
		{"0s", `"0s" has a unit; write plain seconds: 0`},
		{"-1s", `"-1s" has a unit; write plain seconds: -1`},
		{"9999999h", `"9999999h" has a unit; write plain seconds; allowed: 60 to 86400`},
		{"5seconds", `"5seconds" has a unit; write plain seconds; allowed`},
		{"60 s", `"60 s" has a unit; write plain seconds`},
		{"true", `"true" is not a plain whole number; allowed`},
		{"2001-01-01", `"2001-01-01" has a unit; write plain seconds`},
		{"1:30", `"1:30" has a unit; write plain seconds`},
		{"unlimited", `"unlimited" is not a plain whole number; allowed`},
		{"٣٠٠", `"٣٠٠" is not a plain whole number; allowed`},
	} {
		t.Run(row.written, func(t *testing.T) {
			wantFaults(t, "limits:\n  stay_secs: "+row.written+"\n", "g.yaml:2:14: limits.stay_secs: "+row.want)
		})
	}
	wantFaults(t, "limits: {bag_bytes: 16MiB, flow_bps: 10k}",
		`g.yaml:1:21: limits.bag_bytes: "16MiB" has a unit; write plain bytes; allowed: at least 0, 0 = no bags`,
		`g.yaml:1:38: limits.flow_bps: "10k" has a unit; write plain bytes a second; allowed: at least 1`)
	for _, edge := range []string{"60", "86400"} {
		if g, faults := read("limits: {stay_secs: " + edge + "}"); faults != nil || fmt.Sprint(g.Limits.StaySecs) != edge {
			t.Errorf("%s: %d, %v", edge, g.Limits.StaySecs, faults)
		}
	}
}

func TestBoolsAreTrueAndFalse(t *testing.T) {
	for _, word := range []string{"yes", "Yes", "y", "on", "ON", "True", "TRUE", "1"} {
		wantFaults(t, "open: "+word, "g.yaml:1:7: open: "+word+" is not a bool here; write true (allowed: true, false)")
	}
	for _, word := range []string{"no", "n", "off", "False", "0"} {
		wantFaults(t, "open: "+word, "g.yaml:1:7: open: "+word+" is not a bool here; write false")
	}
	wantFaults(t, `open: "true"`, `g.yaml:1:7: open: "true" is a text; allowed: true, false, without quotes`)
	wantFaults(t, "open: maybe", `g.yaml:1:7: open: "maybe" is not a bool; allowed: true, false`)
}

func TestTextsAreTexts(t *testing.T) {
	for _, word := range []string{"1.2", "10", "true", "1e3", "0x10", ".inf"} {
		wantFaults(t, "name: "+word, "g.yaml:1:7: name: "+word+" is no text to YAML; put it in quotes if it is meant")
		if g, faults := read(`name: "` + word + `"`); faults != nil || g.Name != word {
			t.Errorf("%q in quotes: %q, %v", word, g.Name, faults)
		}
	}
	for _, word := range []string{"on", "yes", "no", "2001-01-01", "12:30:45"} {
		if g, faults := read("name: " + word); faults != nil || g.Name != word {
			t.Errorf("%q: %q, %v", word, g.Name, faults)
		}
	}
	for _, escape := range []string{`\x1b[2J`, `\n`, `\0`, `\u202e`, `\N`} {
		_, got := read(`name: "a` + escape + `"`)
		if len(got) != 1 || !strings.Contains(got[0], "has a character that is not allowed") || strings.ContainsFunc(got[0], unprintable) {
			t.Errorf("%s: %q", escape, got)
		}
	}
	wantFaults(t, "name: |\n  a\n  b\n", `g.yaml:1:7: name: "a\nb\n" has a character that is not allowed`)
	wantFaults(t, "signs: {\"a\\tb\": x}", `g.yaml:1:9: signs: the key "a\tb" has a character that is not allowed`)
	wantFaults(t, "\"a\\x07\": x", `g.yaml:1:1: the key "a\a" has a character`)
}

func TestNothingBehindTheColon(t *testing.T) {
	wantFaults(t, "name:\nopen:\nlimits:\n  stay_secs:\n",
		"g.yaml:1:1: name: has no value; write one, or leave the key out for the default eden",
		"g.yaml:2:1: open: has no value; write one, or leave the key out for the default true; allowed: true, false",
		"g.yaml:4:3: limits.stay_secs: has no value; write one, or leave the key out for the default 300 seconds; allowed: 60 to 86400")
	wantFaults(t, "beds:\n  - plant:\n", "g.yaml:2:5: beds[0].plant: has no value; write one; allowed: a text")
	for _, null := range []string{"~", "null", "Null"} {
		wantFaults(t, "name: "+null, "g.yaml:1:7: name: has no value")
		wantFaults(t, "limits: "+null, "g.yaml:1:9: limits: null where a section is needed")
		wantFaults(t, "beds: "+null, "g.yaml:1:7: beds: null where a list is needed")
		if _, got := read("limits: {watch: " + null + "}"); len(got) != 1 || got[0] != "g.yaml:1:17: limits.watch: null where a list is needed; write a list" {
			t.Errorf("watch: %s gives %q", null, got)
		}
	}
	wantFaults(t, "limits: {watch: [gate, ]}")
	wantFaults(t, "limits:\n  watch:\n  - gate\n  -\n", "g.yaml:4:4: limits.watch[1]: has no value; write one")
}

func TestWrongKinds(t *testing.T) {
	for _, row := range []struct{ src, want string }{
		{"- a", "g.yaml:1:1: a list where a section is needed"},
		{"rose", `g.yaml:1:1: "rose" where a section is needed`},
		{"limits: [1]", "g.yaml:1:1: limits: a list where a section is needed"},
		{"limits: 5", `g.yaml:1:9: limits: "5" where a section is needed`},
		{"limits: ''", `g.yaml:1:9: limits: "" where a section is needed`},
		{"name: [a]", "g.yaml:1:1: name: a list where one value is needed; allowed: a text"},
		{"name: {a: b}", "g.yaml:1:1: name: a section where one value is needed"},
		{"limits: {stay_secs: [60]}", "g.yaml:1:10: limits.stay_secs: a list where one value is needed; allowed: 60 to 86400"},
		{"limits: {watch: gate}", `g.yaml:1:17: limits.watch: "gate" where a list is needed; write a list: [gate]`},
		{"beds: rose", `g.yaml:1:7: beds: "rose" where a list is needed; write a list`},
		{"beds: {plant: rose}", "g.yaml:1:1: beds: a section where a list is needed"},
		{"beds: [rose]", `g.yaml:1:8: beds[0]: "rose" where a section is needed`},
		{"ponds: [a]", "g.yaml:1:1: ponds: a list where a section is needed"},
		{"ponds: {p: 3}", `g.yaml:1:12: ponds.p: "3" where a section is needed`},
		{"? [a]\n: b\n", "g.yaml:1:3: a list in the place of a key"},
		{"? {a: b}\n: b\n", "g.yaml:1:3: a section in the place of a key"},
		{"null: b\n", "g.yaml:1:1: null in the place of a key"},
		{"'': b\n", `g.yaml:1:1: "" in the place of a key`},
		{"ponds: {p: {inflow: [10.1.2.3/8]}}", `g.yaml:1:22: ponds.p.inflow[0]: "10.1.2.3/8": has bits set behind its length; write 10.0.0.0/8`},
		{"ponds: {p: {inflow: ['']}}", `g.yaml:1:22: ponds.p.inflow[0]: "": must not be empty`},
		{"ponds: {p: {inflow: [lan]}}", `g.yaml:1:22: ponds.p.inflow[0]: "lan": not a network; allowed: an address, or an address and a length`},
		{"ponds: {p: {inflow: ['::ffff:0:0/90']}}", `g.yaml:1:22: ponds.p.inflow[0]: "::ffff:0:0/90": larger than all of IPv4 in IPv6 form`},
		{"ponds: {p: {inflow: ['::ffff:10.1.0.0/104']}}", `g.yaml:1:22: ponds.p.inflow[0]: "::ffff:10.1.0.0/104": has bits set behind its length; write 10.0.0.0/8`},
		{"ponds: {p: {inflow: ['10.0.0.0/33']}}", `g.yaml:1:22: ponds.p.inflow[0]: "10.0.0.0/33": not a network`},
		{"ponds: {p: {inflow: ['fe80::1%eth0']}}", `g.yaml:1:22: ponds.p.inflow[0]: "fe80::1%eth0": not a network`},
		{"ponds: {p: {inflow: ['fe80::%eth0/64']}}", `g.yaml:1:22: ponds.p.inflow[0]: "fe80::%eth0/64": not a network`},
	} {
		t.Run(row.src, func(t *testing.T) { wantFaults(t, row.src, row.want) })
	}
}

func TestEnums(t *testing.T) {
	wantFaults(t, "beds: [{plant: a, light: shad}]", `g.yaml:1:26: beds[0].light: "shad" is not allowed; did you mean shade?; allowed: sun, shade, none`)
	wantFaults(t, "beds: [{plant: a, light: true}]", `g.yaml:1:26: beds[0].light: "true" is not allowed; allowed: sun, shade, none`)
	wantFaults(t, "beds: [{plant: a, light: Sun}]", `g.yaml:1:26: beds[0].light: "Sun" is not allowed; did you mean sun?`)
	wantFaults(t, "limits: {observe: [per_family, all, per_family]}",
		`g.yaml:1:32: limits.observe[1]: "all" is not allowed; allowed: per_family, per_school`,
		`g.yaml:1:37: limits.observe[2]: "per_family" stands twice; the first is in line 1`)
}

func TestUnknownAndDuplicateKeys(t *testing.T) {
	for _, row := range []struct{ src, want string }{
		{"nam: a", "g.yaml:1:1: nam: unknown key; did you mean name?"},
		{"limits: {Stay-Secs: 60}", "g.yaml:1:10: limits.Stay-Secs: unknown key; did you mean stay_secs?"},
		{"limits: {maxVisitors: 60}", "g.yaml:1:10: limits.maxVisitors: unknown key; did you mean max_visitors?"},
		{"stay_secs: 60", "g.yaml:1:1: stay_secs: unknown key here; stay_secs stands under limits:"},
		{"limits: {depth: 60}", "g.yaml:1:10: limits.depth: unknown key here; depth stands under ponds.*:"},
		{"limits: {ponds: {}}", "g.yaml:1:10: limits.ponds: unknown key here; ponds stands under the first level of the file"},
		{"zebra: 1", "g.yaml:1:1: zebra: unknown key; allowed: name, open, beds, ponds, signs, limits"},
		{"name: a\nopen: true\nname: b", "g.yaml:3:1: name: stands twice; the first is in line 1"},
		{"limits:\n  stay_secs: 60\nlimits:\n  bag_bytes: 1", "g.yaml:3:1: limits: stands twice; the first is in line 1"},
		{"ponds: {a: {}, a: {}}", "g.yaml:1:16: ponds.a: stands twice; the first is in line 1"},
		{"beds: [{light: sun}]", "g.yaml:1:8: beds[0].plant: is missing; it must be written: what grows"},
		{"beds: [{pant: rose}]", "g.yaml:1:9: beds[0].pant: unknown key; did you mean plant?"},
	} {
		t.Run(row.src, func(t *testing.T) { wantFaults(t, row.src, row.want) })
	}
}

func TestStructsJudgeThemselves(t *testing.T) {
	wantFaults(t, "limits:\n  max_visitors: 13\n", "g.yaml:2:17: limits.max_visitors: 13 brings bad luck")
	wantFaults(t, "beds:\n  - plant: rose\n  - plant: nettle\n    light: none\n",
		"g.yaml:3:5: beds[1]: nothing grows without light", "g.yaml:3:12: beds[1].plant: nettles sting")
	wantFaults(t, "beds:\n  - plant: a\n  - plant: b\n  - plant: c\n", "g.yaml:4:5: beds[2]: there is room for two")
	// One fault does not hide another, and makes none: of a value that is not
	// good the struct sees the default.
	wantFaults(t, "limits: {max_visitors: 13, stay_secs: 1}",
		"g.yaml:1:24: limits.max_visitors: 13 brings bad luck", "g.yaml:1:39: limits.stay_secs: 1 is out of range")
	wantFaults(t, "limits: {max_visitors: thirteen, stay_secs: 60}", `g.yaml:1:24: limits.max_visitors: "thirteen"`)
	wantFaults(t, "beds:\n  - plant: nettle\n    light: shad\n", "g.yaml:2:12: beds[0].plant: nettles sting", `g.yaml:3:12: beds[0].light: "shad"`)
}

func TestAllFaultsInOneGoSortedByPlace(t *testing.T) {
	wantFaults(t, "limits:\n  stay_secs: 1\n  zebra: 2\nname: ~\nponds:\n  p: {depth: 0}\n  o: {depth: 41}\nbeds: [{rows: 0}]\n",
		"g.yaml:2:14: limits.stay_secs: ", "g.yaml:3:3: limits.zebra: ", "g.yaml:4:7: name: ",
		"g.yaml:6:14: ponds.p.depth: ", "g.yaml:7:14: ponds.o.depth: ", "g.yaml:8:8: beds[0].plant: ", "g.yaml:8:15: beds[0].rows: ")
}

// A network is its addresses, however it is spelled.
func TestNetworks(t *testing.T) {
	for text, want := range map[string]string{
		"10.1.2.3":            "10.1.2.3/32",
		"10.1.2.3/32":         "10.1.2.3/32",
		"::ffff:10.1.2.3":     "10.1.2.3/32",
		"::ffff:10.0.0.0/104": "10.0.0.0/8",
		"::ffff:0:0/96":       "0.0.0.0/0",
		"::1":                 "::1/128",
		"0:0:0:0:0:0:0:1":     "::1/128",
		"2001:DB8:0:0::/32":   "2001:db8::/32",
		"::/0":                "::/0",
	} {
		got, err := parseNetwork(text)
		if err != nil || got.String() != want {
			t.Errorf("%s: %v, %v; want %s", text, got, err, want)
		}
	}
}

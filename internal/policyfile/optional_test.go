package policyfile

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
)

// orchard has integers that may be left out.
type orchard struct {
	Trees int   `key:"trees" default:"10" min:"1" doc:"trees in all"`
	Rows  *int  `key:"rows" min:"1" max:"trees" doc:"rows of trees"`
	Bees  *int  `key:"bees" min:"0" zero:"none" doc:"hives"`
	Any   *int  `key:"any" doc:"whatever"`
	Plots []lot `key:"plots" default:"[]" doc:"parts of it"`
	Gate  lot   `key:"gate" doc:"the part by the gate"`
}

type lot struct {
	Width *int `key:"width" min:"2" doc:"metres"`
}

func readOrchard(src string) (orchard, error) {
	var o orchard
	err := Parse("o.yaml", []byte(src), &o).Err()
	return o, err
}

func TestOptionalIntegers(t *testing.T) {
	o, err := readOrchard("trees: 5\nrows: 5\nbees: 0\nplots: [{width: 3}, {}]")
	want := orchard{Trees: 5, Rows: new(5), Bees: new(0), Plots: []lot{{new(3)}, {}}}
	if err != nil || !reflect.DeepEqual(o, want) {
		t.Errorf("%v, %+v", err, o)
	}
	if o, err = readOrchard(""); err != nil || !reflect.DeepEqual(o, orchard{Trees: 10, Plots: []lot{}}) {
		t.Errorf("nothing written gives %v, %+v", err, o)
	}
	o = orchard{Rows: new(3), Gate: lot{new(7)}}
	if Defaults(&o); o.Rows != nil || o.Gate.Width != nil {
		t.Error("a value from before is left")
	}
	for src, want := range map[string]string{
		"trees: 5\nrows: 6":          "o.yaml:2:7: rows: 6 is out of range; allowed: 1 to trees (5)",
		"rows: 0":                    "o.yaml:1:7: rows: 0 is out of range; allowed: 1 to trees (10)",
		"rows:":                      "o.yaml:1:1: rows: has no value; write one, or leave the key out; allowed: 1 to trees",
		"rows: two":                  `o.yaml:1:7: rows: "two" is not a plain whole number; allowed: 1 to trees (10)`,
		"bees: -1":                   "o.yaml:1:7: bees: -1 is out of range; allowed: at least 0, 0 = none",
		"bees: [1]":                  "o.yaml:1:1: bees: a list where one value is needed; allowed: at least 0, 0 = none",
		"any: ~":                     "o.yaml:1:6: any: has no value; write one, or leave the key out; allowed: a whole number",
		"plots: [{}, {width: 1}]":    "o.yaml:1:21: plots[1].width: 1 is out of range; allowed: at least 2",
		"plots: [{width: 2, w: 3}]":  "o.yaml:1:20: plots[0].w: unknown key; allowed: width",
		"rows: 1\nrows: 2":           "o.yaml:2:1: rows: stands twice; the first is in line 1",
		"rows: 99999999999999999999": "o.yaml:1:7: rows: 99999999999999999999 is too large a number; allowed: 1 to trees (10)",
	} {
		o, err := readOrchard(src)
		if err == nil || err.Error() != want {
			t.Errorf("%q gives\n%v\nwant\n%s", src, err, want)
		}
		if o.Bees != nil || !strings.Contains(src, "rows: 1") && o.Rows != nil {
			t.Errorf("%q leaves the values %v, %v", src, o.Rows, o.Bees)
		}
	}
}

func TestOptionalIntegersAreDescribed(t *testing.T) {
	facts := map[string]string{
		"trees": "default 10, at least 1", "rows": "no default, 1 to trees", "bees": "no default, at least 0, 0 = none",
		"any": "no default, a whole number", "plots": "default []", "plots[].width": "no default, at least 2",
		"gate": "section", "gate.width": "no default, at least 2",
	}
	for _, k := range Describe(orchard{}) {
		if k.Facts() != facts[k.Path] {
			t.Errorf("%s: %q, want %q", k.Path, k.Facts(), facts[k.Path])
		}
		if optional := strings.HasPrefix(facts[k.Path], "no default"); k.Optional != optional || optional && (k.Type != "integer" || k.Required || k.Default != "") {
			t.Errorf("%+v", k)
		}
		delete(facts, k.Path)
	}
	if len(facts) > 0 {
		t.Errorf("not described: %v", facts)
	}
	var schema struct {
		Required   []string
		Properties map[string]json.RawMessage
	}
	if err := json.Unmarshal(Schema(orchard{}), &schema); err != nil {
		t.Fatal(err)
	}
	var bees map[string]any
	if err := json.Unmarshal(schema.Properties["bees"], &bees); err != nil {
		t.Fatal(err)
	}
	want := map[string]any{"type": "integer", "minimum": 0.0, "description": "hives (at least 0, 0 = none)"}
	if !reflect.DeepEqual(bees, want) || len(schema.Required) > 0 {
		t.Errorf("the schema has %v, and requires %v", bees, schema.Required)
	}
}

func TestOptionalIntegersAreEncoded(t *testing.T) {
	for src, want := range map[string]string{
		"{}": "trees: 10\nplots: []\ngate: {}\n",
		"{rows: 2, bees: 0, plots: [{}, {width: 4}, {}], gate: {width: 9}}": "trees: 10\nrows: 2\nbees: 0\nplots:\n  - {}\n  - width: 4\n  - {}\ngate:\n  width: 9\n",
	} {
		o, err := readOrchard(src)
		if err != nil {
			t.Fatal(err)
		}
		if got := string(Encode(&o)); got != want {
			t.Errorf("%s is written as\n%s\nwant\n%s", src, got, want)
		}
		if again, err := readOrchard(want); err != nil || !reflect.DeepEqual(again, o) {
			t.Errorf("%s reads back as %+v, %v", want, again, err)
		}
	}
	// A key may be left out before others are written.
	v := struct {
		A *int `key:"a" doc:"d"`
		B int  `key:"b" default:"1" doc:"d"`
	}{B: 3}
	if got := string(Encode(v)); got != "b: 3\n" {
		t.Errorf("%q", got)
	}
}

func TestOptionalTagsThatContradict(t *testing.T) {
	for name, v := range map[string]any{
		"default": struct {
			A *int `key:"a" default:"1" doc:"d"`
		}{},
		"required": struct {
			A *int `key:"a" required:"true" doc:"d"`
		}{},
		"bounds another": struct {
			A *int `key:"a" doc:"d"`
			B int  `key:"b" default:"1" max:"a" doc:"d"`
		}{},
		"default of another": struct {
			A *int `key:"a" doc:"d"`
			B int  `key:"b" default:"a" doc:"d"`
		}{},
		"text": struct {
			A *string `key:"a" doc:"d"`
		}{},
		"section": struct {
			A *struct{} `key:"a" doc:"d"`
		}{},
		"element": struct {
			A []*int `key:"a" default:"[]" doc:"d"`
		}{},
		"pointer to a pointer": struct {
			A **int `key:"a" doc:"d"`
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

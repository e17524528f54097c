package policyfile

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"gopkg.in/yaml.v3"
)

func TestSchemaOfAKey(t *testing.T) {
	var root map[string]any
	if err := json.Unmarshal(Schema(garden{}), &root); err != nil {
		t.Fatal(err)
	}
	if root["$schema"] != "https://json-schema.org/draft/2020-12/schema" {
		t.Error("the draft is not named")
	}
	for path, want := range map[string]string{
		"properties name":                                `{"default":"eden","description":"what it is called","type":"string"}`,
		"properties open":                                `{"default":true,"description":"whether people may enter","type":"boolean"}`,
		"properties beds items required":                 `["plant"]`,
		"properties beds items additionalProperties":     `false`,
		"properties beds items properties light":         `{"default":"sun","description":"what it stands in","enum":["sun","shade","none"],"type":"string"}`,
		"properties beds items properties rows":          `{"default":3,"description":"rows in the bed (1 to 9)","maximum":9,"minimum":1,"type":"integer"}`,
		"properties signs":                               `{"additionalProperties":{"type":"string"},"description":"texts by place","type":["object","null"]}`,
		"properties limits properties per_family":        `{"default":64,"description":"people of one family (0 to max_visitors, 0 = off)","minimum":0,"type":"integer"}`,
		"properties limits properties per_school":        `{"description":"people of one school (2 to max_visitors)","minimum":2,"type":"integer"}`,
		"properties limits properties observe items":     `{"enum":["per_family","per_school"],"type":"string"}`,
		"properties limits properties watch default":     `["gate","pond"]`,
		"properties ponds additionalProperties required": `null`,
	} {
		var at any = root
		for step := range strings.FieldsSeq(path) {
			at = at.(map[string]any)[step]
		}
		got, err := json.Marshal(at)
		if err != nil {
			t.Fatal(err)
		}
		if string(got) != want {
			t.Errorf("%s:\n%s\nwant\n%s", path, got, want)
		}
	}
}

// Whatever the reader takes, the schema takes; and an editor that goes by the
// schema already finds most of what the reader refuses.
func TestSchemaAgreesWithTheReader(t *testing.T) {
	var schema map[string]any
	if err := json.Unmarshal(Schema(garden{}), &schema); err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct {
		src              string
		reader, bySchema bool
	}{
		{"{}", true, true},
		{"{name: a, open: false, beds: [{plant: x, rows: 9}]}", true, true},
		{"{limits: , beds: , ponds: {p: }}", true, true},
		{"{limits: {max_visitors: 5, per_family: 5}}", true, true},
		{"{limits: {per_family: 101}}", false, true},
		{"{nmae: a}", false, false},
		{"{name: 5}", false, false},
		{"{name: }", false, false},
		{"{open: 'true'}", false, false},
		{"{beds: [{rows: 3}]}", false, false},
		{"{beds: [{plant: x, rows: 10}]}", false, false},
		{"{beds: [{plant: x, rows: 0}]}", false, false},
		{"{beds: [{plant: x, light: moon}]}", false, false},
		{"{beds: {}}", false, false},
		{"{ponds: {p: {depth: 41}}}", false, false},
		{"{limits: {observe: [all]}}", false, false},
		{"{limits: {stay_secs: '60'}}", false, false},
		{"{limits: {stay_secs: 60s}}", false, false},
	} {
		if _, faults := read(row.src); (faults == nil) != row.reader {
			t.Errorf("%s: the reader says %v", row.src, faults)
		}
		var v any
		if err := yaml.Unmarshal([]byte(row.src), &v); err != nil {
			t.Fatal(err)
		}
		if err := conforms(v, schema); (err == nil) != row.bySchema {
			t.Errorf("%s: the schema says %v", row.src, err)
		}
	}
}

// conforms judges v by the part of JSON Schema that Schema makes use of.
func conforms(v any, schema map[string]any) error {
	kind, names := "", schema["type"]
	switch v.(type) {
	case nil:
		kind = "null"
	case string:
		kind = "string"
	case bool:
		kind = "boolean"
	case int:
		kind = "integer"
	case []any:
		kind = "array"
	case map[string]any:
		kind = "object"
	}
	if many, ok := names.([]any); names != kind && (!ok || !slices.Contains(many, any(kind))) {
		return fmt.Errorf("%v is a %s, not %v", v, kind, names)
	}
	if enum, ok := schema["enum"].([]any); ok && !slices.Contains(enum, v) {
		return fmt.Errorf("%v is none of %v", v, enum)
	}
	switch v := v.(type) {
	case int:
		if lo, ok := schema["minimum"].(float64); ok && float64(v) < lo {
			return fmt.Errorf("%d is less than %v", v, lo)
		}
		if hi, ok := schema["maximum"].(float64); ok && float64(v) > hi {
			return fmt.Errorf("%d is more than %v", v, hi)
		}
	case []any:
		for _, e := range v {
			if err := conforms(e, schema["items"].(map[string]any)); err != nil {
				return err
			}
		}
	case map[string]any:
		properties, _ := schema["properties"].(map[string]any)
		required, _ := schema["required"].([]any)
		for _, r := range required {
			if _, ok := v[r.(string)]; !ok {
				return fmt.Errorf("%v is missing", r)
			}
		}
		for name, e := range v {
			inner, ok := properties[name].(map[string]any)
			if !ok {
				inner, ok = schema["additionalProperties"].(map[string]any)
			}
			if !ok {
				return fmt.Errorf("%s is not known", name)
			}
			if err := conforms(e, inner); err != nil {
				return err
			}
		}
	}
	return nil
}

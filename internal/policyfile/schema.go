package policyfile

import (
	"bytes"
	"encoding/json"
	"strconv"
)

// Schema returns the JSON Schema (draft 2020-12) of v's type, a struct or a
// pointer to one, for editors. What depends on another key is in the
// description only: the schema accepts more than the reader does, never less.
func Schema(v any) []byte {
	root := schemaStruct(shapeOf(v))
	root = append(members{{"$schema", "https://json-schema.org/draft/2020-12/schema"}}, root...)
	out, err := json.MarshalIndent(root, "", "  ")
	must(err)
	return append(out, '\n')
}

// members is a JSON object that keeps its order.
type members []member

type member struct {
	name  string
	value any
}

func (m members) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	b.WriteByte('{')
	for i, e := range m {
		if i > 0 {
			b.WriteByte(',')
		}
		name, err := json.Marshal(e.name)
		if err != nil {
			return nil, err
		}
		value, err := json.Marshal(e.value)
		if err != nil {
			return nil, err
		}
		b.Write(name)
		b.WriteByte(':')
		b.Write(value)
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// A section or list may be written with nothing behind its colon, which is null to a schema.
func orNull(name string) []string { return []string{name, "null"} }

func schemaStruct(s *shape) members {
	properties, required := members{}, []string{}
	for _, f := range s.fields {
		properties = append(properties, member{f.key, schemaField(f)})
		if f.required {
			required = append(required, f.key)
		}
	}
	m := members{{"type", orNull("object")}, {"additionalProperties", false}, {"properties", properties}}
	if len(required) > 0 {
		m = append(m, member{"required", required})
	}
	return m
}

func schemaField(f *field) members {
	m := schemaShape(f.shape, f)
	description := f.doc
	if facts := factsRange(f); facts != "" && f.shape.kind == kindInt {
		description += " (" + facts + ")"
	}
	m = append(members{{"description", description}}, m...)
	if d, ok := schemaDefault(f); ok {
		m = append(m, member{"default", d})
	}
	return m
}

func schemaShape(s *shape, f *field) members {
	switch s.kind {
	case kindBool:
		return members{{"type", "boolean"}}
	case kindInt:
		m := members{{"type", "integer"}}
		if f.min != nil && f.min.ref == "" {
			m = append(m, member{"minimum", f.min.literal})
		}
		if f.max != nil && f.max.ref == "" {
			m = append(m, member{"maximum", f.max.literal})
		}
		return m
	case kindStruct:
		return schemaStruct(s)
	case kindList:
		return members{{"type", orNull("array")}, {"items", schemaShape(s.elem, elementOf(f))}}
	case kindMap:
		return members{{"type", orNull("object")}, {"additionalProperties", schemaShape(s.elem, elementOf(f))}}
	}
	if f.enum != nil {
		return members{{"type", "string"}, {"enum", f.enum}}
	}
	return members{{"type", "string"}}
}

// schemaDefault gives the default where it hangs on no other key.
func schemaDefault(f *field) (any, bool) {
	if !f.hasDef {
		return nil, false
	}
	switch f.shape.kind {
	case kindBool:
		return f.def == "true", true
	case kindInt:
		n, err := strconv.ParseInt(f.def, 10, 64)
		return n, err == nil
	case kindList:
		parts, _ := listDefault(f.def)
		if f.shape.elem.kind == kindInt || f.shape.elem.kind == kindBool {
			return nil, false
		}
		return append([]string{}, parts...), true
	}
	return f.def, true
}

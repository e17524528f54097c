package policyfile

import (
	"fmt"
	"reflect"
	"strings"
)

// Key describes one key of a policy, for documents and for tests that hold documents against the code.
type Key struct {
	Path    string // "listeners[].bind", "upstreams.*.addresses"
	Type    string // bool, integer, text, section, list or map; a list names its elements: "list of text"
	Default string // as it would be written in the file; empty if required, optional or a section
	Range   string // what is allowed, for people; empty where the type says it all
	Doc     string
	// Required is whether the key must be written.
	Required bool
	// Optional is whether nothing takes the place of the key where it is not written.
	Optional bool
}

// Facts gives the part of a key's documentation that code decides:
// "default 64, 0 to max_connections, 0 = off".
func (k Key) Facts() string {
	switch {
	case k.Required && k.Range != "":
		return "required, " + k.Range
	case k.Required:
		return "required"
	case k.Type == "section":
		return "section"
	case k.Optional:
		return "no default, " + k.Range
	case k.Range != "":
		return "default " + k.Default + ", " + k.Range
	default:
		return "default " + k.Default
	}
}

// Describe returns every key of v's type, a struct or a pointer to one, in the order of the source.
func Describe(v any) []Key {
	var keys []Key
	var walk func(s *shape, path string)
	walk = func(s *shape, path string) {
		for _, f := range s.fields {
			at := join(path, f.key)
			keys = append(keys, Key{
				Path: at, Type: typeText(f.shape), Default: defaultText(f), Range: factsRange(f), Doc: f.doc,
				Required: f.required, Optional: f.optional,
			})
			inner, at := innerStruct(f.shape, at)
			if inner != nil {
				walk(inner, at)
			}
		}
	}
	walk(shapeOf(v), "")
	return keys
}

// innerStruct looks through lists and maps for a struct, and gives the path of its level.
func innerStruct(s *shape, path string) (*shape, string) {
	for {
		switch s.kind {
		case kindStruct:
			return s, path
		case kindList:
			s, path = s.elem, path+"[]"
		case kindMap:
			s, path = s.elem, path+".*"
		default:
			return nil, ""
		}
	}
}

// sections maps each key below the first level to the sections that know it,
// written as in the file: "limits:".
func sections(s *shape) map[string][]string {
	places := map[string][]string{}
	var walk func(s *shape, path string)
	walk = func(s *shape, path string) {
		for _, f := range s.fields {
			if path != "" {
				places[f.key] = append(places[f.key], path+":")
			} else {
				places[f.key] = append(places[f.key], "the first level of the file")
			}
			if inner, at := innerStruct(f.shape, join(path, f.key)); inner != nil {
				walk(inner, at)
			}
		}
	}
	walk(s, "")
	return places
}

func typeText(s *shape) string {
	switch s.kind {
	case kindBool:
		return "bool"
	case kindInt:
		return "integer"
	case kindString, kindText:
		return "text"
	case kindStruct:
		return "section"
	case kindList:
		return "list of " + typeText(s.elem)
	default:
		return "map of " + typeText(s.elem)
	}
}

// defaultText gives the default as it would be written in the file, with its unit.
func defaultText(f *field) string {
	switch {
	case f.shape.kind == kindMap:
		return "{}"
	case !f.hasDef:
		return ""
	case f.shape.kind == kindString && f.def == "":
		return `""`
	case f.shape.kind == kindInt && unitOf(f.key) != "":
		return f.def + " " + unitOf(f.key)
	}
	return f.def
}

// factsRange is what is allowed, without values that another key decides.
func factsRange(f *field) string {
	switch {
	case f.enum != nil && f.shape.kind == kindList:
		return "any of " + strings.Join(f.enum, " | ")
	case len(f.enum) == 1:
		return "only " + f.enum[0]
	case f.enum != nil:
		return strings.Join(f.enum, " | ")
	case f.shape.kind == kindInt:
		return boundsText(f, nil)
	}
	return ""
}

// rangeText is what is allowed, for a message.
func rangeText(f *field, ints map[string]int64) string {
	switch {
	case f.enum != nil:
		return enumText(f.enum)
	case f.shape.kind == kindBool:
		return "true, false"
	case f.shape.kind == kindInt:
		return boundsText(f, ints)
	case f.shape.typ.PkgPath() == "net/netip":
		return "a text with " + map[string]string{"Prefix": "a network", "Addr": "an address", "AddrPort": "an address and a port"}[f.shape.typ.Name()]
	case f.shape.kind == kindString || f.shape.kind == kindText:
		return "a text"
	case f.shape.kind == kindList && f.shape.typ.Elem().Kind() == reflect.Struct:
		return "a list of sections"
	}
	return typeText(f.shape)
}

func enumText(enum []string) string { return strings.Join(enum, ", ") }

// boundsText says a range in words; ints, where given, adds the values of the keys that bound it.
func boundsText(f *field, ints map[string]int64) string {
	say := func(b *bound) string {
		if v, ok := b.value(ints); ok && b.ref != "" && ints != nil {
			return fmt.Sprintf("%s (%d)", b, v)
		}
		return b.String()
	}
	text := "a whole number"
	switch {
	case f.min != nil && f.max != nil:
		text = say(f.min) + " to " + say(f.max)
	case f.min != nil:
		text = "at least " + say(f.min)
	case f.max != nil:
		text = "at most " + say(f.max)
	}
	if f.zero != "" {
		text += ", 0 = " + f.zero
	}
	return text
}

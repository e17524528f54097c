package policyfile

import (
	"bytes"
	"encoding"
	"encoding/json"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Encode returns v, a struct or a pointer to one, as YAML with every key but
// those of the first level that are named, and optional ones that have no value.
// What it returns reads back as the same values, but for strings that show less
// than they hold.
func Encode(v any, without ...string) []byte {
	var b bytes.Buffer
	value := reflect.ValueOf(v)
	if value.Kind() == reflect.Pointer {
		value = value.Elem()
	}
	s := *shapeOf(v)
	s.fields = slices.DeleteFunc(slices.Clone(s.fields), func(f *field) bool { return slices.Contains(without, f.key) })
	encodeStruct(&b, value, &s, "", "")
	return b.Bytes()
}

// encodeStruct writes the keys of a struct; the first line begins with first, the others with indent.
func encodeStruct(b *bytes.Buffer, v reflect.Value, s *shape, first, indent string) {
	for _, f := range s.fields {
		fv := v.FieldByIndex(f.index)
		if f.optional {
			if fv.IsNil() {
				continue
			}
			fv = fv.Elem()
		}
		b.WriteString(first + f.key + ":")
		encodeValue(b, fv, f.shape, indent)
		first = indent
	}
}

// saysNothing reports whether no key of a struct would be written.
func saysNothing(v reflect.Value, s *shape) bool {
	return !slices.ContainsFunc(s.fields, func(f *field) bool { return !f.optional || !v.FieldByIndex(f.index).IsNil() })
}

// encodeValue writes what stands behind a colon, with the line's end.
func encodeValue(b *bytes.Buffer, v reflect.Value, s *shape, indent string) {
	deeper := indent + "  "
	switch {
	case s.kind == kindStruct && saysNothing(v, s):
		b.WriteString(" {}\n")
	case s.kind == kindStruct:
		b.WriteString("\n")
		encodeStruct(b, v, s, deeper, deeper)
	case s.kind == kindMap && v.Len() == 0:
		b.WriteString(" {}\n")
	case s.kind == kindMap:
		b.WriteString("\n")
		names := v.MapKeys()
		slices.SortFunc(names, func(a, b reflect.Value) int { return strings.Compare(a.String(), b.String()) })
		for _, name := range names {
			b.WriteString(deeper + yamlText(name.String()) + ":")
			encodeValue(b, v.MapIndex(name), s.elem, deeper)
		}
	case s.kind == kindList && s.elem.kind == kindStruct && v.Len() > 0:
		b.WriteString("\n")
		for i := range v.Len() {
			if saysNothing(v.Index(i), s.elem) {
				b.WriteString(deeper + "- {}\n")
				continue
			}
			encodeStruct(b, v.Index(i), s.elem, deeper+"- ", deeper+"  ")
		}
	default:
		b.WriteString(" " + flow(v, s) + "\n")
	}
}

// flow gives a scalar or a list of them on one line.
func flow(v reflect.Value, s *shape) string {
	switch s.kind {
	case kindBool:
		return strconv.FormatBool(v.Bool())
	case kindInt:
		return strconv.FormatInt(v.Int(), 10)
	case kindString:
		return yamlText(stringText(v))
	case kindText:
		return yamlText(marshalText(v))
	case kindList:
		parts := make([]string, v.Len())
		for i := range parts {
			parts[i] = flow(v.Index(i), s.elem)
		}
		return "[" + strings.Join(parts, ", ") + "]"
	}
	panic(fmt.Sprintf("policyfile: %v cannot stand on one line", s.typ))
}

// stringText is what is shown of a string: of a type with MarshalText, what that says.
func stringText(v reflect.Value) string {
	if _, ok := v.Interface().(encoding.TextMarshaler); ok {
		return marshalText(v)
	}
	return v.String()
}

func marshalText(v reflect.Value) string {
	if m, ok := v.Interface().(encoding.TextMarshaler); ok {
		if text, err := m.MarshalText(); err == nil {
			return string(text)
		}
	}
	return fmt.Sprint(v.Interface())
}

var plainWord = regexp.MustCompile(`^[A-Za-z/][A-Za-z0-9_./@-]*$`)

// yamlText gives s plain where every reader of YAML takes it for that text, else in quotes.
func yamlText(s string) string {
	switch strings.ToLower(s) {
	case "true", "false", "yes", "no", "on", "off", "y", "n", "null":
	default:
		if plainWord.MatchString(s) {
			return s
		}
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	must(e.Encode(s))
	return strings.TrimSuffix(b.String(), "\n")
}

package policyfile

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// Value is one key of a section with its value in force.
type Value struct {
	Key  string // dotted, below the section: "metrics.enabled"
	Text string // on one line, without the quotes of YAML
}

// maxListed is how many elements of a list a Text names; of a longer one it gives
// the number, and so it does of sections and of networks, which may be clients'.
const maxListed = 8

// Values returns the keys of v, a struct or a pointer to one, in the order of
// the source, those of the sections in it included. Optional keys without a
// value are left out.
func Values(v any) (values []Value) {
	walk(reflect.Indirect(reflect.ValueOf(v)), &field{shape: shapeOf(v)}, "", false, func(v reflect.Value, f *field, key string) {
		values = append(values, Value{key, text(v, f.shape)})
	})
	return values
}

// Files returns the keys of v that name a file, wherever in lists and maps they
// are, each with the file. Sockets are none.
func Files(v any) (files []Value) {
	walk(reflect.Indirect(reflect.ValueOf(v)), &field{shape: shapeOf(v)}, "", true, func(v reflect.Value, f *field, key string) {
		if f.file && f.shape.kind == kindString && v.String() != "" && v.String() != f.word {
			files = append(files, Value{key, v.String()})
		}
	})
	return files
}

// walk goes to the keys of a struct and, if it goes deep, into its lists and maps.
func walk(v reflect.Value, f *field, key string, deep bool, visit func(v reflect.Value, f *field, key string)) {
	if v.Kind() == reflect.Pointer {
		if v.IsNil() {
			return
		}
		v = v.Elem()
	}
	switch {
	case f.shape.kind == kindStruct:
		for _, member := range f.shape.fields {
			walk(v.FieldByIndex(member.index), member, join(key, member.key), deep, visit)
		}
	case deep && f.shape.kind == kindList:
		for i := range v.Len() {
			walk(v.Index(i), elementOf(f), fmt.Sprintf("%s[%d]", key, i), deep, visit)
		}
	case deep && f.shape.kind == kindMap:
		of := entries(v)
		for _, name := range slices.Sorted(maps.Keys(of)) {
			walk(of[name], elementOf(f), join(key, name), deep, visit)
		}
	default:
		visit(v, f, key)
	}
}

// entries gives the values of a map by their names.
func entries(v reflect.Value) map[string]reflect.Value {
	of := make(map[string]reflect.Value, v.Len())
	for name, value := range v.Seq2() {
		of[name.String()] = value
	}
	return of
}

// named reports whether a list is told by its elements rather than by their number.
func named(v reflect.Value, s *shape) bool { return s.elem.kind < kindText && v.Len() <= maxListed }

func counted(n int) string {
	if n == 1 {
		return "1 entry"
	}
	return strconv.Itoa(n) + " entries"
}

func text(v reflect.Value, s *shape) string {
	switch {
	case s.kind == kindString:
		return stringText(v)
	case s.kind == kindMap, s.kind == kindList && !named(v, s):
		return counted(v.Len())
	case s.kind == kindList:
		elements := make([]string, v.Len())
		for i := range elements {
			elements[i] = text(v.Index(i), s.elem)
		}
		return "[" + strings.Join(elements, ", ") + "]"
	case s.kind == kindText:
		return marshalText(v)
	}
	return flow(v, s)
}

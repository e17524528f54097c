package policyfile

import (
	"encoding"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
)

type kind int

const (
	kindBool kind = iota
	kindInt
	kindString
	kindText // a type with UnmarshalText
	kindStruct
	kindList
	kindMap
)

// shape is what a Go type looks like in the file.
type shape struct {
	kind    kind
	typ     reflect.Type
	elem    *shape   // of a list or map
	fields  []*field // of a struct, with those of inline structs, in the order of the source
	inlines [][]int  // of a struct: where its inline structs are
}

// field is one key of a struct.
type field struct {
	key      string
	optional bool // a pointer: nil where the key is not written
	index    []int
	shape    *shape
	def      string // the default, as the tag has it
	hasDef   bool
	min, max *bound
	zero     string
	enum     []string
	required bool
	path     bool
	// pathBehind is the prefix behind which a path stands; a text without it is none.
	pathBehind string
	file       bool   // a path of something that is opened, not of a socket
	word       string // a text that is no path
	doc        string
}

// bound is a number, or another key of the same level, divided.
type bound struct {
	ref     string
	literal int64
	divisor int64
}

func (b *bound) String() string {
	switch {
	case b.ref == "":
		return strconv.FormatInt(b.literal, 10)
	case b.divisor != 1:
		return fmt.Sprintf("%s/%d", b.ref, b.divisor)
	default:
		return b.ref
	}
}

// value returns the bound, given the level's integers; false if the key that it names has no value to go by.
func (b *bound) value(ints map[string]int64) (int64, bool) {
	if b.ref == "" {
		return b.literal, true
	}
	v, ok := ints[b.ref]
	return v / b.divisor, ok
}

func (s *shape) field(key string) *field {
	for _, f := range s.fields {
		if f.key == key {
			return f
		}
	}
	return nil
}

func (s *shape) keys() []string {
	keys := make([]string, len(s.fields))
	for i, f := range s.fields {
		keys[i] = f.key
	}
	return keys
}

var (
	textType     = reflect.TypeFor[encoding.TextUnmarshaler]()
	durationType = reflect.TypeFor[time.Duration]()
)

// shapeOf reads the tags of v's type, a struct or a pointer to one.
func shapeOf(v any) *shape {
	t := reflect.TypeOf(v)
	if t != nil && t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t == nil || t.Kind() != reflect.Struct {
		panic(fmt.Sprintf("policyfile: %T is no struct", v))
	}
	return readShape(t, nil)
}

// readShape panics on what cannot be a policy; above are the types that contain t.
func readShape(t reflect.Type, above []reflect.Type) *shape {
	if slices.Contains(above, t) {
		panic(fmt.Sprintf("policyfile: %v contains itself", t))
	}
	above = append(slices.Clone(above), t)
	s := &shape{typ: t}
	switch {
	case t == durationType:
		panic("policyfile: time.Duration: keys are integers whose name ends in the unit")
	case reflect.PointerTo(t).Implements(textType):
		s.kind = kindText
	case t.Kind() == reflect.Bool:
		s.kind = kindBool
	case t.Kind() == reflect.Int:
		s.kind = kindInt
	case t.Kind() == reflect.String:
		s.kind = kindString
	case t.Kind() == reflect.Struct:
		s.kind = kindStruct
		readFields(s, t, nil, above)
	case t.Kind() == reflect.Slice:
		s.kind, s.elem = kindList, readShape(t.Elem(), above)
	case t.Kind() == reflect.Map && t.Key().Kind() == reflect.String:
		s.kind, s.elem = kindMap, readShape(t.Elem(), above)
	default:
		panic(fmt.Sprintf("policyfile: %v: not a type of a policy", t))
	}
	return s
}

func readFields(s *shape, t reflect.Type, index []int, above []reflect.Type) {
	for i := range t.NumField() {
		sf := t.Field(i)
		at := append(slices.Clone(index), i)
		key, tagged := sf.Tag.Lookup("key")
		switch {
		case !tagged && !sf.IsExported():
		case !tagged:
			panic(fmt.Sprintf("policyfile: %v.%s has no key", t, sf.Name))
		case !sf.IsExported():
			panic(fmt.Sprintf("policyfile: %v.%s has a key and cannot be set", t, sf.Name))
		case key == ",inline":
			s.inlines = append(s.inlines, at)
			readFields(s, sf.Type, at, above)
		default:
			s.fields = append(s.fields, readField(s, sf, key, at, above))
		}
	}
}

func readField(s *shape, sf reflect.StructField, key string, index []int, above []reflect.Type) *field {
	t := sf.Type
	optional := t.Kind() == reflect.Pointer && t.Elem().Kind() == reflect.Int
	if optional {
		t = t.Elem()
	}
	f := &field{
		key:      key,
		optional: optional,
		shape:    readShape(t, above),
		index:    index,
		zero:     sf.Tag.Get("zero"),
		required: sf.Tag.Get("required") == "true",
		path:     sf.Tag.Get("path") != "",
		word:     sf.Tag.Get("word"),
		doc:      sf.Tag.Get("doc"),
	}
	wrong := func(why string) {
		panic(fmt.Sprintf("policyfile: %v: key %s: %s", s.typ, key, why))
	}
	switch sf.Tag.Get("path") {
	case "":
	case "true":
		f.file = true
	case "unix":
		f.pathBehind = "unix:"
	case "socket":
	default:
		wrong("path is none of true, unix and socket")
	}
	f.def, f.hasDef = sf.Tag.Lookup("default")
	if key == "" || s.field(key) != nil {
		wrong("empty or given twice")
	}
	if f.doc == "" {
		wrong("no doc")
	}
	for tag, b := range map[string]**bound{"min": &f.min, "max": &f.max} {
		if text, ok := sf.Tag.Lookup(tag); ok {
			if *b = readBound(text, s); *b == nil || f.shape.kind != kindInt {
				wrong(tag + " is neither a number nor an integer key that stands before this one")
			}
		}
	}
	if enum := sf.Tag.Get("enum"); enum != "" {
		f.enum = strings.Split(enum, "|")
		if f.scalar().kind != kindString {
			wrong("enum of something that is no string")
		}
	}
	switch f.shape.kind {
	case kindStruct, kindMap:
		if f.hasDef {
			wrong("a section takes the defaults of its keys, a map is empty")
		}
	case kindList:
		if _, ok := listDefault(f.def); f.required == f.hasDef || f.hasDef && !ok {
			wrong("a list has a default [a, b] or is required")
		}
	default:
		if f.optional && (f.required || f.hasDef) {
			wrong("an optional integer has no default and is not required")
		}
		if !f.optional && f.required == f.hasDef {
			wrong("either a default or required")
		}
	}
	if f.hasDef {
		if why := checkDefault(s, f); why != "" {
			wrong("default: " + why)
		}
	}
	return f
}

// scalar is the field's shape, or that of its elements.
func (f *field) scalar() *shape {
	if f.shape.kind == kindList {
		return f.shape.elem
	}
	return f.shape
}

func readBound(text string, s *shape) *bound {
	if n, err := strconv.ParseInt(text, 10, 64); err == nil {
		return &bound{literal: n, divisor: 1}
	}
	ref, divisor, divided := strings.Cut(text, "/")
	b := &bound{ref: ref, divisor: 1}
	if divided {
		var err error
		if b.divisor, err = strconv.ParseInt(divisor, 10, 64); err != nil || b.divisor < 1 {
			return nil
		}
	}
	if other := s.field(ref); other == nil || other.shape.kind != kindInt || other.optional {
		return nil
	}
	return b
}

// listDefault splits "[a, b]".
func listDefault(text string) ([]string, bool) {
	inner, opens := strings.CutPrefix(text, "[")
	inner, closes := strings.CutSuffix(inner, "]")
	if !opens || !closes {
		return nil, false
	}
	if strings.TrimSpace(inner) == "" {
		return nil, true
	}
	parts := strings.Split(inner, ",")
	for i := range parts {
		parts[i] = strings.TrimSpace(parts[i])
	}
	return parts, true
}

// checkDefault says what is wrong with a default, so that a test that only
// reads the tags already finds it.
func checkDefault(s *shape, f *field) string {
	switch f.shape.kind {
	case kindInt:
		b := readBound(f.def, s)
		if b == nil {
			return "neither a number nor an integer key that stands before this one"
		}
		lo, hi := int64(math.MinInt64), int64(math.MaxInt64)
		if f.min != nil && f.min.ref == "" {
			lo = f.min.literal
		}
		if f.max != nil && f.max.ref == "" {
			hi = f.max.literal
		}
		if b.ref == "" && (b.literal < lo || b.literal > hi) {
			return "out of its own range"
		}
	case kindBool, kindString, kindText:
		if err := setScalar(reflect.New(f.shape.typ).Elem(), f.shape, f.def); err != nil {
			return err.Error()
		}
		if f.shape.kind == kindString && f.enum != nil && !slices.Contains(f.enum, f.def) {
			return "not of the enum"
		}
	case kindList:
		parts, _ := listDefault(f.def)
		for _, p := range parts {
			if err := setScalar(reflect.New(f.shape.elem.typ).Elem(), f.shape.elem, p); err != nil {
				return err.Error()
			}
			if f.enum != nil && !slices.Contains(f.enum, p) {
				return "not of the enum"
			}
		}
	}
	return ""
}

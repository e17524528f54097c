package policyfile

import (
	"fmt"
	"maps"
	"math"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"gopkg.in/yaml.v3"
)

// decoder fills one struct from one file. Unwritten parts of the tree are nil nodes.
type decoder struct {
	doc *Document
	dir string // where relative paths begin
	// elsewhere maps each key of the policy to the sections that know it.
	elsewhere map[string][]string
}

func (d *decoder) fault(at position, key, format string, args ...any) {
	d.doc.faults = append(d.doc.faults, at.fault(d.doc.file, key, fmt.Sprintf(format, args...)))
}

func nodePosition(n *yaml.Node) position { return position{n.Line, n.Column} }

// entry is a key that is written, with its value.
type entry struct{ key, value *yaml.Node }

// position of a fault of the entry's value: the value itself where it is a
// word on the key's line, else the key.
func (e entry) position() position {
	if e.value.Kind == yaml.ScalarNode && !isEmpty(e.value) {
		return nodePosition(e.value)
	}
	return nodePosition(e.key)
}

// isEmpty reports whether nothing stands behind the key.
func isEmpty(n *yaml.Node) bool {
	return n.Kind == yaml.ScalarNode && n.Tag == "!!null" && n.Value == "" && isPlain(n)
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

// structure decodes a mapping into the struct v and reports whether it had no fault.
func (d *decoder) structure(n *yaml.Node, v reflect.Value, s *shape, path string, at position) bool {
	before := len(d.doc.faults)
	written := map[string]entry{}
	if n != nil {
		written = d.mapping(n, path, at, func(key *yaml.Node) bool {
			if s.field(key.Value) != nil {
				return true
			}
			d.unknown(key, s, path)
			return false
		})
	}
	ints := map[string]int64{}
	section := n != nil && (n.Kind == yaml.MappingNode || isEmpty(n))
	for _, f := range s.fields {
		fv := v.FieldByIndex(f.index)
		key := join(path, f.key)
		e, ok := written[f.key]
		switch {
		case ok:
			d.doc.at[key] = e.position()
			faults := len(d.doc.faults)
			d.value(e.value, fv, f, key, e.position(), ints)
			if len(d.doc.faults) > faults && f.shape.kind <= kindText {
				// Validate judges the other keys beside a value that is good.
				d.unwritten(fv, f, key, at, maps.Clone(ints))
			}
		case f.required && section:
			if !d.doc.dirty[key] {
				d.fault(at, key, "is missing; it must be written: %s", f.doc)
			}
		default:
			d.unwritten(fv, f, key, at, ints)
		}
	}
	for _, index := range s.inlines {
		d.validate(v.FieldByIndex(index), path)
	}
	d.validate(v, path)
	return len(d.doc.faults) == before
}

// mapping collects the entries of a mapping whose keys are known, and refuses those that stand twice.
func (d *decoder) mapping(n *yaml.Node, path string, at position, known func(key *yaml.Node) bool) map[string]entry {
	written := map[string]entry{}
	if isEmpty(n) {
		return written
	}
	if n.Kind != yaml.MappingNode {
		d.fault(at, path, "%s where a section is needed; allowed: keys with values, or nothing", described(n))
		return written
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		if key.Kind != yaml.ScalarNode || key.Value == "" || key.Tag == "!!null" {
			d.fault(nodePosition(key), path, "%s in the place of a key; a key is one word", described(key))
			continue
		}
		if strings.ContainsFunc(key.Value, unprintable) {
			d.fault(nodePosition(key), path, "the key %s has a character that is not allowed; only printable text is", quoted(key.Value))
			continue
		}
		if first, twice := written[key.Value]; twice {
			d.fault(nodePosition(key), join(path, key.Value), "stands twice; the first is in line %d", first.key.Line)
			continue
		}
		if known(key) {
			written[key.Value] = entry{key, value}
		}
	}
	return written
}

// unknown reports a key that the level does not know, and the key that was probably meant.
func (d *decoder) unknown(key *yaml.Node, s *shape, path string) {
	name := key.Value
	problem := "unknown key"
	if len(d.doc.faults) >= maxPrinted {
		// Nobody reads that far, and looking for near ones takes time.
		d.fault(nodePosition(key), join(path, name), "%s", problem)
		return
	}
	if near := Nearest(name, s.keys()); near != "" {
		d.doc.dirty[join(path, near)] = true
		problem += fmt.Sprintf("; did you mean %s?", near)
	} else if places := d.elsewhere[name]; len(places) > 0 {
		problem += fmt.Sprintf(" here; %s stands under %s", name, strings.Join(places, " or "))
	} else {
		problem += "; allowed: " + strings.Join(s.keys(), ", ")
	}
	d.fault(nodePosition(key), join(path, name), "%s", problem)
}

// value decodes what stands behind a key.
func (d *decoder) value(n *yaml.Node, v reflect.Value, f *field, key string, at position, ints map[string]int64) {
	switch f.shape.kind {
	case kindStruct:
		d.structure(n, v, f.shape, key, at)
	case kindMap:
		d.names(n, v, f, key, at)
	case kindList:
		d.list(n, v, f, key, at)
	case kindInt:
		d.integer(n, v, f, key, at, ints)
	default:
		d.scalar(n, v, f, f.shape, key, at)
	}
}

// names decodes a mapping from names that the operator chooses.
func (d *decoder) names(n *yaml.Node, v reflect.Value, f *field, key string, at position) {
	s := f.shape
	v.Set(reflect.MakeMap(s.typ))
	written := d.mapping(n, key, at, func(*yaml.Node) bool { return true })
	for name, e := range written {
		elem := reflect.New(s.elem.typ).Elem()
		path := join(key, name)
		d.doc.at[path] = e.position()
		d.value(e.value, elem, elementOf(f), path, e.position(), nil)
		v.SetMapIndex(reflect.ValueOf(name).Convert(s.typ.Key()), elem)
	}
}

// elementOf is the field of one element of a list or map: what holds for the elements stays.
func elementOf(f *field) *field {
	return &field{key: f.key, shape: f.shape.elem, enum: f.enum, path: f.path, pathBehind: f.pathBehind, file: f.file, word: f.word, doc: f.doc, required: true}
}

func (d *decoder) list(n *yaml.Node, v reflect.Value, f *field, key string, at position) {
	s := f.shape
	v.Set(reflect.MakeSlice(s.typ, 0, 0))
	if isEmpty(n) {
		return
	}
	if n.Kind != yaml.SequenceNode {
		hint := ""
		if n.Kind == yaml.ScalarNode && !(n.Tag == "!!null" && isPlain(n)) && s.elem.kind != kindStruct {
			hint = fmt.Sprintf(": [%s]", shortened(n.Value))
		}
		d.fault(at, key, "%s where a list is needed; write a list%s", described(n), hint)
		return
	}
	v.Set(reflect.MakeSlice(s.typ, len(n.Content), len(n.Content)))
	first := map[string]int{}
	for i, c := range n.Content {
		path := fmt.Sprintf("%s[%d]", key, i)
		d.doc.at[path] = nodePosition(c)
		d.value(c, v.Index(i), elementOf(f), path, nodePosition(c), nil)
		if f.enum == nil || c.Kind != yaml.ScalarNode {
			continue
		}
		if line, twice := first[c.Value]; twice {
			d.fault(nodePosition(c), path, "%s stands twice; the first is in line %d", quoted(c.Value), line)
		} else {
			first[c.Value] = c.Line
		}
	}
}

func (d *decoder) integer(n *yaml.Node, v reflect.Value, f *field, key string, at position, ints map[string]int64) {
	if d.noScalar(n, f, key, at) {
		return
	}
	value, problem := integer(n, f.key)
	allowed := rangeText(f, ints)
	if problem != "" {
		d.fault(at, key, "%s; allowed: %s", problem, allowed)
		return
	}
	lo, hi := limitsOf(f, ints)
	if value < lo || value > hi {
		d.fault(at, key, "%d is out of range; allowed: %s", value, allowed)
		return
	}
	if f.optional {
		v.Set(reflect.New(f.shape.typ))
		v = v.Elem()
	}
	v.SetInt(value)
	if ints != nil {
		ints[f.key] = value
	}
}

// limitsOf gives the range of an integer; a bound that hangs on a faulty key does not bind.
func limitsOf(f *field, ints map[string]int64) (lo, hi int64) {
	lo, hi = math.MinInt, math.MaxInt
	if f.min != nil {
		if v, ok := f.min.value(ints); ok {
			lo = v
		}
	}
	if f.max != nil {
		if v, ok := f.max.value(ints); ok {
			hi = v
		}
	}
	return lo, hi
}

func (d *decoder) scalar(n *yaml.Node, v reflect.Value, f *field, s *shape, key string, at position) {
	if d.noScalar(n, f, key, at) {
		return
	}
	if s.kind == kindBool {
		value, problem := boolean(n)
		if problem != "" {
			d.fault(at, key, "%s", problem)
			return
		}
		v.SetBool(value)
		return
	}
	if strings.ContainsFunc(n.Value, unprintable) {
		d.fault(at, key, "%s has a character that is not allowed; only printable text is", quoted(n.Value))
		return
	}
	if f.enum != nil && !slices.Contains(f.enum, n.Value) {
		meant := ""
		if near := Nearest(n.Value, f.enum); near != "" {
			meant = fmt.Sprintf("; did you mean %s?", near)
		}
		d.fault(at, key, "%s is not allowed%s; allowed: %s", quoted(n.Value), meant, enumText(f.enum))
		return
	}
	// YAML takes some words for other types, and other readers of this file would too.
	if n.Tag == "!!bool" || n.Tag == "!!int" || n.Tag == "!!float" {
		d.fault(at, key, "%s is no text to YAML; put it in quotes if it is meant", printable(shortened(n.Value)))
		return
	}
	if err := setScalar(v, s, n.Value); err != nil {
		d.fault(at, key, "%s: %v", quoted(n.Value), err)
		return
	}
	d.resolvePath(v, f)
}

// resolvePath makes a relative path relative to the file's folder.
func (d *decoder) resolvePath(v reflect.Value, f *field) {
	if !f.path || v.Kind() != reflect.String || f.word != "" && v.String() == f.word {
		return
	}
	p, found := strings.CutPrefix(v.String(), f.pathBehind)
	if found && p != "" && !filepath.IsAbs(p) {
		if p = filepath.Join(d.dir, p); f.word != "" && p == f.word {
			p = "." + string(filepath.Separator) + p // it was a path, and stays one
		}
		v.SetString(f.pathBehind + p)
	}
}

// noScalar reports, and refuses, anything but a scalar with a value.
func (d *decoder) noScalar(n *yaml.Node, f *field, key string, at position) bool {
	switch {
	case n.Kind != yaml.ScalarNode:
		d.fault(at, key, "%s where one value is needed; allowed: %s", described(n), rangeText(f, nil))
	case n.Tag == "!!null" && isPlain(n):
		instead := "write one"
		if f.optional {
			instead = "write one, or leave the key out"
		} else if f.hasDef {
			instead = fmt.Sprintf("write one, or leave the key out for the default %s", defaultText(f))
		}
		d.fault(at, key, "has no value; %s; allowed: %s", instead, rangeText(f, nil))
	default:
		return false
	}
	return true
}

// unwritten gives a key that is not written its default.
func (d *decoder) unwritten(v reflect.Value, f *field, key string, at position, ints map[string]int64) {
	switch f.shape.kind {
	case kindStruct:
		d.structure(nil, v, f.shape, key, at)
	case kindMap:
		v.Set(reflect.MakeMap(f.shape.typ))
	case kindList:
		parts, _ := listDefault(f.def)
		v.Set(reflect.MakeSlice(f.shape.typ, len(parts), len(parts)))
		for i, p := range parts {
			must(setScalar(v.Index(i), f.shape.elem, p))
			d.resolvePath(v.Index(i), f)
		}
	case kindInt:
		if f.optional {
			v.SetZero()
		}
		if !f.hasDef {
			return
		}
		def := boundOf(f.def)
		value, ok := def.value(ints)
		if !ok {
			return
		}
		lo, hi := limitsOf(f, ints)
		if lo > hi {
			d.fault(at, key, "no value is left for it; allowed: %s", rangeText(f, ints))
			return
		}
		if def.ref != "" {
			d.doc.held[key] = def.ref
		}
		if value < lo && f.min.ref != "" {
			d.doc.held[key] = f.min.ref
		}
		if value > hi && f.max.ref != "" {
			d.doc.held[key] = f.max.ref
		}
		value = min(max(value, lo), hi)
		v.SetInt(value)
		ints[f.key] = value
	default:
		if f.hasDef {
			must(setScalar(v, f.shape, f.def))
			d.resolvePath(v, f)
		}
	}
}

// boundOf reads a default that was already checked with the tags.
func boundOf(text string) *bound {
	if n, err := strconv.ParseInt(text, 10, 64); err == nil {
		return &bound{literal: n, divisor: 1}
	}
	ref, divisor, _ := strings.Cut(text, "/")
	n, err := strconv.ParseInt(divisor, 10, 64)
	if err != nil {
		n = 1
	}
	return &bound{ref: ref, divisor: n}
}

func must(err error) {
	if err != nil {
		panic("policyfile: a default that was checked with the tags: " + err.Error())
	}
}

// described names what a node is, for messages.
func described(n *yaml.Node) string {
	switch {
	case n.Kind == yaml.MappingNode:
		return "a section"
	case n.Kind == yaml.SequenceNode:
		return "a list"
	case isEmpty(n):
		return "nothing"
	case n.Tag == "!!null" && isPlain(n):
		return "null"
	default:
		return quoted(n.Value)
	}
}

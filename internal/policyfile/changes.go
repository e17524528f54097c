package policyfile

import (
	"cmp"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
)

// Change is a key that two policies have different values of. A section of a
// list is named by its key name, where it has one ("listeners[public].bind"), else
// by its place ("certificates.files[0].key").
type Change struct {
	Key  string `json:"key"`
	From string `json:"from,omitempty"` // on one line; a list of networks, or a long one, is told by its length
	To   string `json:"to,omitempty"`
	What string `json:"what,omitempty"` // what values do not say: "added", "2 added, 1 removed"
}

// String gives it on one line: "limits.max_connections: 1000 → 500".
func (c Change) String() string {
	var b strings.Builder
	b.WriteString(printable(c.Key) + ": ")
	values := c.From != "" || c.To != ""
	if values {
		b.WriteString(printable(c.From) + " → " + printable(c.To))
	}
	switch {
	case values && c.What != "":
		b.WriteString(" (" + printable(c.What) + ")")
	case c.What != "":
		b.WriteString(printable(c.What))
	}
	return b.String()
}

// Changes returns the keys in which b differs from a, in the order of the source.
// Both are structs of one type, or pointers to such.
func Changes(a, b any) []Change {
	c := new(comparison)
	c.values(reflect.Indirect(reflect.ValueOf(a)), reflect.Indirect(reflect.ValueOf(b)), shapeOf(a), "")
	return c.changes
}

type comparison struct{ changes []Change }

func (c *comparison) add(key, what string) {
	c.changes = append(c.changes, Change{Key: key, What: what})
}

func (c *comparison) values(a, b reflect.Value, s *shape, key string) {
	switch {
	case s.kind == kindStruct:
		for _, f := range s.fields {
			c.field(a.FieldByIndex(f.index), b.FieldByIndex(f.index), f, join(key, f.key))
		}
	case s.kind == kindMap:
		was, is := entries(a), entries(b)
		names := maps.Clone(was)
		maps.Copy(names, is)
		for _, name := range slices.Sorted(maps.Keys(names)) {
			c.element(was[name], is[name], s.elem, join(key, name))
		}
	case s.kind == kindList && s.elem.kind == kindStruct:
		c.sections(a, b, s.elem, key)
	case s.kind == kindList:
		if was, is := elements(a, s), elements(b, s); !slices.Equal(was, is) {
			change := Change{Key: key, From: shown(a, s), To: shown(b, s)}
			if !named(a, s) || !named(b, s) {
				change.From, change.To, change.What = counted(len(was)), counted(len(is)), difference(was, is)
			}
			c.changes = append(c.changes, change)
		}
	default:
		was, is := shown(a, s), shown(b, s)
		// What a string does not show can be all that has changed.
		if was != is || s.kind == kindString && a.String() != b.String() {
			c.changes = append(c.changes, Change{Key: key, From: was, To: is})
		}
	}
}

// field compares a key that may be optional.
func (c *comparison) field(a, b reflect.Value, f *field, key string) {
	if !f.optional {
		c.values(a, b, f.shape, key)
		return
	}
	text := func(v reflect.Value) string {
		if v.IsNil() {
			return "not written"
		}
		return shown(v.Elem(), f.shape)
	}
	if was, is := text(a), text(b); was != is {
		c.changes = append(c.changes, Change{Key: key, From: was, To: is})
	}
}

// element compares what one of the two may be without.
func (c *comparison) element(a, b reflect.Value, s *shape, key string) {
	switch {
	case !a.IsValid():
		c.add(key, "added")
	case !b.IsValid():
		c.add(key, "removed")
	default:
		c.values(a, b, s, key)
	}
}

// sections compares lists of sections: those of one name, or else of one place.
func (c *comparison) sections(a, b reflect.Value, elem *shape, key string) {
	was, is := byName(a, elem), byName(b, elem)
	if was == nil || is == nil {
		for i := range max(a.Len(), b.Len()) {
			c.element(at(a, i), at(b, i), elem, fmt.Sprintf("%s[%d]", key, i))
		}
		return
	}
	name := elem.field("name")
	for i := range a.Len() {
		n := a.Index(i).FieldByIndex(name.index).String()
		c.element(a.Index(i), is[n], elem, key+"["+n+"]")
	}
	for i := range b.Len() {
		if n := b.Index(i).FieldByIndex(name.index).String(); !was[n].IsValid() {
			c.add(key+"["+n+"]", "added")
		}
	}
}

// byName gives the sections of a list by their key name; nil where they have
// none, or two have the same.
func byName(v reflect.Value, elem *shape) map[string]reflect.Value {
	name := elem.field("name")
	if name == nil || name.shape.kind != kindString {
		return nil
	}
	sections := make(map[string]reflect.Value, v.Len())
	for i := range v.Len() {
		sections[v.Index(i).FieldByIndex(name.index).String()] = v.Index(i)
	}
	if len(sections) != v.Len() {
		return nil
	}
	return sections
}

func at(v reflect.Value, i int) reflect.Value {
	if i < v.Len() {
		return v.Index(i)
	}
	return reflect.Value{}
}

// elements gives each element of a list of scalars as text.
func elements(v reflect.Value, s *shape) []string {
	all := make([]string, v.Len())
	for i := range all {
		all[i] = shown(v.Index(i), s.elem)
	}
	return all
}

// difference says in what number two different lists differ.
func difference(was, is []string) string {
	count := map[string]int{}
	for _, e := range is {
		count[e]++
	}
	for _, e := range was {
		count[e]--
	}
	added, removed := 0, 0
	for _, n := range count {
		added += max(n, 0)
		removed += max(-n, 0)
	}
	switch {
	case added == 0 && removed == 0:
		return "in another order"
	case removed == 0:
		return fmt.Sprintf("%d added", added)
	case added == 0:
		return fmt.Sprintf("%d removed", removed)
	}
	return fmt.Sprintf("%d added, %d removed", added, removed)
}

// shown is text, where nothing is to be seen too.
func shown(v reflect.Value, s *shape) string { return cmp.Or(text(v, s), `""`) }

// Keep gives b, a pointer to a struct, the values that a, a struct of the same
// type or a pointer to one, has of the keys that are kept. What is asked about
// are the keys that Values returns, not what is inside lists and maps.
func Keep(a, b any, kept func(key string) bool) {
	var keep func(from, to reflect.Value, s *shape, key string)
	keep = func(from, to reflect.Value, s *shape, key string) {
		for _, f := range s.fields {
			x, y, key := from.FieldByIndex(f.index), to.FieldByIndex(f.index), join(key, f.key)
			if f.shape.kind == kindStruct {
				keep(x, y, f.shape, key)
			} else if kept(key) {
				y.Set(x)
			}
		}
	}
	keep(reflect.Indirect(reflect.ValueOf(a)), reflect.ValueOf(b).Elem(), shapeOf(a), "")
}

package policyfile

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Fault is one thing that is wrong with a file.
type Fault struct {
	File         string
	Line, Column int    // from 1; Column counts characters. Line is 0 where the whole file is meant.
	Key          string // dotted path: "listeners[0].bind"; empty where no key is meant
	Problem      string // what is wrong, and what is allowed
}

// String gives the fault as `file:line:column: key: problem`, on one line and printable.
func (f Fault) String() string {
	var b strings.Builder
	b.WriteString(printable(f.File))
	if f.Line > 0 {
		fmt.Fprintf(&b, ":%d:%d", f.Line, f.Column)
	}
	b.WriteString(": ")
	if f.Key != "" {
		b.WriteString(printable(f.Key))
		b.WriteString(": ")
	}
	b.WriteString(printable(f.Problem))
	return b.String()
}

// Faults are all faults of a file, sorted by position.
type Faults []Fault

// maxPrinted bounds what Faults.Error says: a file of rubbish has a fault on every line.
const maxPrinted = 100

// Error gives one fault a line.
func (fs Faults) Error() string {
	lines := make([]string, 0, min(len(fs), maxPrinted)+1)
	for _, f := range fs[:min(len(fs), maxPrinted)] {
		lines = append(lines, f.String())
	}
	if more := len(fs) - maxPrinted; more > 0 {
		lines = append(lines, fmt.Sprintf("%s: and %d more faults", printable(fs[0].File), more))
	}
	return strings.Join(lines, "\n")
}

// sorted returns the faults by position, each once: a struct and the struct
// that it embeds may both complain of the same key in the same words.
func (fs Faults) sorted() Faults {
	fs = slices.Clone(fs)
	slices.SortStableFunc(fs, func(a, b Fault) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column),
			cmp.Compare(a.Key, b.Key), cmp.Compare(a.Problem, b.Problem))
	})
	return slices.Compact(fs)
}

// printable returns s with whatever a terminal could obey written as an escape.
func printable(s string) string {
	if strings.IndexFunc(s, unprintable) < 0 && !strings.ContainsRune(s, '\uFFFD') {
		return s
	}
	q := strconv.Quote(s)
	return strings.ReplaceAll(q[1:len(q)-1], `\"`, `"`)
}

func unprintable(r rune) bool { return !strconv.IsPrint(r) }

// maxQuoted is how many characters of a value a message repeats.
const maxQuoted = 60

// quoted gives a value from the file for a message.
func quoted(s string) string {
	if r := []rune(s); len(r) > maxQuoted {
		return strconv.Quote(string(r[:maxQuoted])) + "…"
	}
	return strconv.Quote(s)
}

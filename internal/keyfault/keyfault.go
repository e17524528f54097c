// Package keyfault is how a config struct says which of its keys is wrong. The
// policy file finds the key's position by the method PolicyKey; whoever owns the
// struct need not know that there is a file.
package keyfault

import (
	"errors"
	"fmt"
	"strings"
)

// Fault is what is wrong with one key.
type Fault struct {
	Key  string // dotted, below the struct: "addresses[0]"
	Text string
}

// New returns a fault of the key.
func New(key, format string, args ...any) error {
	return &Fault{key, fmt.Errorf(format, args...).Error()}
}

func (f *Fault) Error() string { return f.Key + ": " + f.Text }

// PolicyKey names the key, so that the policy file reports its position.
func (f *Fault) PolicyKey() string { return f.Key }

// keyed is a fault of a key, of this package or of one that does without it. Its
// text begins with the key.
type keyed interface {
	error
	PolicyKey() string
}

// Below returns the faults that err joins, as those of keys below a section.
func Below(section string, err error) (all []error) {
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return nil
	}
	for _, e := range joined.Unwrap() {
		if f, ok := errors.AsType[keyed](e); ok {
			e = &Fault{section + "." + f.PolicyKey(), strings.TrimPrefix(f.Error(), f.PolicyKey()+": ")}
		}
		all = append(all, e)
	}
	return all
}

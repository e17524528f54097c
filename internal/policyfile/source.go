package policyfile

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"unicode/utf8"

	"gopkg.in/yaml.v3"
)

// Bounds of a file. A policy with every key and a deny list of thousands of
// networks stays far below them.
const (
	maxBytes = 1 << 20
	maxDepth = 32
	maxNodes = 100_000
)

// position is a place in a file, both from 1.
type position struct{ line, column int }

func (p position) fault(file, key, problem string) Fault {
	return Fault{File: file, Line: p.line, Column: p.column, Key: key, Problem: problem}
}

// plainText judges the bytes before YAML sees them: their number, their
// encoding, and characters that have no business in a policy. It returns the
// text without a byte order mark and with every line ended by LF.
func plainText(file string, src []byte) ([]byte, Faults) {
	if len(src) > maxBytes {
		return nil, Faults{{File: file, Problem: fmt.Sprintf("larger than %d bytes, the most that a policy may have", maxBytes)}}
	}
	src = bytes.TrimPrefix(src, []byte("\uFEFF"))
	src = bytes.ReplaceAll(src, []byte("\r\n"), []byte("\n"))
	var faults Faults
	line := 0
	for text := range bytes.Lines(src) {
		line++
		column, indent := 0, true
		for rest := bytes.TrimSuffix(text, []byte("\n")); len(rest) > 0; {
			r, size := utf8.DecodeRune(rest)
			column++
			at := position{line, column}
			switch {
			case r == utf8.RuneError && size == 1:
				// One fault a line: the rest of it is as unreadable, and UTF-16 would give one for every byte.
				faults = append(faults, at.fault(file, "", fmt.Sprintf("byte 0x%02x is not UTF-8; save the file as UTF-8", rest[0])))
				size = len(rest)
			case indent && r == '\t' && !blankOrComment(rest):
				faults = append(faults, at.fault(file, "", "a tab in the indentation; YAML allows only spaces there"))
				size = len(rest)
			case r != '\t' && unprintable(r):
				faults = append(faults, at.fault(file, "", fmt.Sprintf("the character %U is not allowed; only printable text, spaces and line ends are", r)))
				size = len(rest)
			}
			indent = indent && (r == ' ' || r == '\t')
			rest = rest[size:]
		}
	}
	return src, faults
}

func blankOrComment(rest []byte) bool {
	rest = bytes.TrimLeft(rest, " \t")
	return len(rest) == 0 || rest[0] == '#'
}

// parseYAML returns the root of the only document, or nil if the file says nothing.
func parseYAML(file string, src []byte) (*yaml.Node, Faults) {
	first, second, err := documents(src)
	if err != nil {
		return nil, Faults{syntaxFault(file, src, err)}
	}
	if second != nil {
		at := position{second.Line, second.Column}
		return nil, Faults{at.fault(file, "", "a second document; a policy is one document, so take the line --- out")}
	}
	if first == nil {
		return nil, nil
	}
	if faults := plainNodes(file, src, first); len(faults) > 0 {
		return nil, faults
	}
	return first.Content[0], nil
}

// documents parses the first two documents of src; nil stands for one that is not there.
func documents(src []byte) (first, second *yaml.Node, err error) {
	defer func() {
		// The parser panics on some malformed inputs; for whoever wrote the
		// file that is a syntax error like any other.
		if r := recover(); r != nil {
			err = fmt.Errorf("yaml: %v", r)
		}
	}()
	d := yaml.NewDecoder(bytes.NewReader(src))
	for _, doc := range []**yaml.Node{&first, &second} {
		var n yaml.Node
		if err := d.Decode(&n); errors.Is(err, io.EOF) {
			return first, second, nil
		} else if err != nil {
			return nil, nil, err
		}
		*doc = &n
	}
	return first, second, nil
}

// plainNodes refuses the parts of YAML that a policy has no use for, and trees
// too deep or too large to be a policy. Their meaning is never looked at, so
// that an alias costs nothing here.
func plainNodes(file string, src []byte, root *yaml.Node) Faults {
	var faults Faults
	// The parser forgets the tag that is a bare exclamation mark, but the node
	// begins there; no other node begins with one, unless in quotes.
	marks := exclamationMarks(src)
	bareTag := func(n *yaml.Node) bool { return n.Kind != yaml.DocumentNode && marks[position{n.Line, n.Column}] }
	nodes := 0
	var walk func(n *yaml.Node, depth int) bool
	walk = func(n *yaml.Node, depth int) bool {
		at := position{n.Line, n.Column}
		refuse := func(problem string) {
			faults = append(faults, at.fault(file, "", problem))
		}
		if nodes++; nodes > maxNodes {
			refuse(fmt.Sprintf("more than %d keys and values", maxNodes))
			return false
		}
		if depth > maxDepth {
			refuse(fmt.Sprintf("nested deeper than %d levels", maxDepth))
			return false
		}
		if n.Kind == yaml.AliasNode {
			refuse(fmt.Sprintf("the alias *%s; aliases are not allowed, write the value out", printable(n.Value)))
			return true
		}
		if n.Anchor != "" {
			refuse(fmt.Sprintf("the anchor &%s; anchors are not allowed, write the value out where it is needed", printable(n.Anchor)))
		}
		switch {
		case n.Tag == "!!merge":
			refuse("a merge key (<<); merge keys are not allowed, write the keys out")
		case n.Style&yaml.TaggedStyle != 0 || bareTag(n):
			refuse(fmt.Sprintf("the tag %s; tags are not allowed", printable(n.Tag)))
		}
		for _, c := range n.Content {
			if !walk(c, depth+1) {
				return false
			}
		}
		return true
	}
	// The document node above the root is no level of the policy.
	nodes--
	walk(root, 0)
	return faults
}

// exclamationMarks gives the place of each one in src.
func exclamationMarks(src []byte) map[position]bool {
	marks := map[position]bool{}
	at := position{1, 1}
	for _, r := range string(src) {
		if r == '!' {
			marks[at] = true
		}
		at.column++
		if r == '\n' {
			at = position{at.line + 1, 1}
		}
	}
	return marks
}

package policyfile

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"time"
)

// Document is a file that was read: where its keys stand, and what is wrong
// with it. A caller that judges more than one section alone can know adds its
// own faults, so that they come out together and in order.
type Document struct {
	file   string
	faults Faults
	at     map[string]position // the keys that are written
	dirty  map[string]bool     // keys that were probably meant by an unknown key
	held   map[string]string   // keys whose default another key has moved, with that key
}

// Read reads the policy at path into the struct that into points to. The error
// is that of the file; what is wrong inside it is told by the document's Err.
func Read(path string, into any) (*Document, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	src, err := readSource(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("the policy file: %w; check the path", err)
	case errors.Is(err, fs.ErrPermission):
		return nil, fmt.Errorf("the policy file: %w; let the user of this process read it", err)
	case errors.Is(err, syscall.EISDIR):
		return nil, fmt.Errorf("the policy file: %w; name a file in it", err)
	case err != nil:
		return nil, err
	}
	return parse(path, filepath.Dir(abs), src, into), nil
}

// pipeTime bounds the reading of what is no regular file: a pipe with a writer
// that never ends it would hold up whoever reads for ever.
const pipeTime = 10 * time.Second

// readSource reads the file at path, which may be a pipe, as <(command) and
// /dev/stdin are.
func readSource(path string) ([]byte, error) {
	// Opening a pipe does not wait for a writer, and reading one that has none
	// finds its end.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	f.SetReadDeadline(time.Now().Add(pipeTime)) // fails for a regular file, which needs none
	// One byte beyond the bound is enough to see that it is exceeded.
	src, err := io.ReadAll(io.LimitReader(f, maxBytes+1))
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, fmt.Errorf("%s: its end has not come in %v; write the policy in a regular file, or end what is written there", path, pipeTime)
	case err == nil && len(src) == 0 && info.Mode()&fs.ModeNamedPipe != 0:
		return nil, fmt.Errorf("%s: is a pipe that nobody writes to; write the policy in a regular file", path)
	}
	return src, err
}

// Parse reads src into the struct that into points to. Faults name the file as
// name; relative paths begin in name's folder.
func Parse(name string, src []byte, into any) *Document {
	return parse(name, filepath.Dir(name), src, into)
}

func parse(name, dir string, src []byte, into any) *Document {
	s := shapeOf(into)
	doc := &Document{file: name, at: map[string]position{}, dirty: map[string]bool{}, held: map[string]string{}}
	text, faults := plainText(name, src)
	if len(faults) > 0 {
		doc.faults = faults
		return doc
	}
	root, faults := parseYAML(name, text)
	if len(faults) > 0 {
		doc.faults = faults
		return doc
	}
	d := &decoder{doc: doc, dir: dir, elsewhere: sections(s)}
	at := position{1, 1}
	if root != nil {
		at = nodePosition(root)
	}
	d.structure(root, reflect.ValueOf(into).Elem(), s, "", at)
	return doc
}

// Defaults sets the struct that into points to as an empty file would. It
// panics if the defaults do not pass the struct's own Validate.
func Defaults(into any) {
	if err := Parse("defaults", nil, into).Err(); err != nil {
		panic("policyfile: " + err.Error())
	}
}

// Err returns all faults as [Faults], sorted by position, or nil.
func (d *Document) Err() error {
	if len(d.faults) == 0 {
		return nil
	}
	return d.faults.sorted()
}

// Written reports whether the key stands in the file. Paths are those of
// faults: "relay.limits", "listeners[0].bind".
func (d *Document) Written(key string) bool {
	_, ok := d.at[key]
	return ok
}

// Line returns the line in which the key stands, or 0.
func (d *Document) Line(key string) int { return d.at[key].line }

// Origin says where the value of a key comes from: "policy.yaml:12", "default",
// or, of a default that the range or the value of another key has moved,
// "default, held by max_connections".
func (d *Document) Origin(key string) string {
	if at, ok := d.at[key]; ok {
		return fmt.Sprintf("%s:%d", printable(d.file), at.line)
	}
	if by, ok := d.held[key]; ok {
		return "default, held by " + by
	}
	return "default"
}

// Below reports whether a key is another, or stands inside it. All stand inside
// the key "", the whole file.
func Below(key, section string) bool {
	rest, ok := strings.CutPrefix(key, section)
	return ok && (section == "" || rest == "" || rest[0] == '.' || rest[0] == '[')
}

// Clean reports whether the key and all below it were read without fault, so
// that its value can be held against others.
func (d *Document) Clean(key string) bool {
	for _, f := range d.faults {
		if f.Key == "" || Below(f.Key, key) || Below(key, f.Key) {
			return false
		}
	}
	for k := range d.dirty {
		if Below(k, key) || Below(key, k) {
			return false
		}
	}
	return true
}

// Fault adds a fault at the key's place or, where it is not written, at that
// of the nearest section around it that is.
func (d *Document) Fault(key, format string, args ...any) {
	d.faults = append(d.faults, d.place(key).fault(d.file, key, fmt.Sprintf(format, args...)))
}

func (d *Document) place(key string) position {
	for at := key; at != ""; at = at[:max(0, strings.LastIndexAny(at, ".["))] {
		if p, ok := d.at[at]; ok {
			return p
		}
	}
	return position{1, 1}
}

// validate asks a struct that judges itself. Its word does not count for keys
// that have a fault already: it saw a stand-in for their value.
func (d *decoder) validate(v reflect.Value, path string) {
	judge, ok := v.Addr().Interface().(interface{ Validate() error })
	if !ok {
		return
	}
	var found Faults
	for _, err := range split(judge.Validate()) {
		key, text := path, strings.Join(strings.Fields(err.Error()), " ")
		if keyed, ok := errors.AsType[interface {
			error
			PolicyKey() string
		}](err); ok && keyed.PolicyKey() != "" {
			key = join(path, keyed.PolicyKey())
			// An error that reads well alone begins with its key, as a fault does.
			text = strings.TrimPrefix(text, keyed.PolicyKey()+": ")
		}
		if bounded, ok := errors.AsType[interface {
			error
			PolicyBound() string
		}](err); ok && bounded.PolicyBound() != "" && !d.doc.Clean(join(path, bounded.PolicyBound())) {
			continue
		}
		if d.doc.Clean(key) {
			found = append(found, d.doc.place(key).fault(d.doc.file, key, text))
		}
	}
	d.doc.faults = append(d.doc.faults, found...)
}

// split takes errors.Join apart.
func split(err error) []error {
	if err == nil {
		return nil
	}
	if many, ok := err.(interface{ Unwrap() []error }); ok {
		var all []error
		for _, e := range many.Unwrap() {
			all = append(all, split(e)...)
		}
		return all
	}
	return []error{err}
}

package mailbox

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"math"
)

// The format of bbolt's pages: a header, then the elements of a branch or a leaf,
// each of which says how far behind itself its key stands. Numbers are in the
// machine's order.
const (
	pageHead    = 16
	elementHead = 16
	metaHead    = 64
	inlineHead  = 16 // of a bucket, in the value that stands for it

	kindBranch = 0x01
	kindLeaf   = 0x02

	elementBucket = 0x01

	// maxDepth is far beyond any tree: each level has at least two children.
	maxDepth = 64
)

var native = binary.NativeEndian

// pages looks at the pages of a database that are in use. The database does so
// too when it opens a file for writing, but on a goroutine of its own, where
// damage ends the process: a page beyond the file's end as much as one that stands
// in two places. This reads no page through the memory that the file is mapped to.
type pages struct {
	file io.ReaderAt
	size int
	end  uint64 // the first page that is none
	seen map[uint64]bool
}

// checkPages returns what is wrong with the pages of a database, whose header has
// been found well.
func checkPages(file io.ReaderAt, pageSize int) error {
	p := pages{file: file, size: pageSize, seen: map[uint64]bool{0: true, 1: true}}
	root, err := p.root()
	if err != nil {
		return err
	}
	return p.tree(root, nil, nil, 0)
}

// root returns the page of the latest transaction's root.
func (p *pages) root() (uint64, error) {
	var root, latest uint64
	found := false
	for id := range int64(2) {
		head := make([]byte, pageHead+metaHead)
		if _, err := p.file.ReadAt(head, id*int64(p.size)); err != nil {
			return 0, err
		}
		meta := head[pageHead:]
		sum := fnv.New64a()
		sum.Write(meta[:metaHead-8])
		if sum.Sum64() != native.Uint64(meta[56:]) {
			continue
		}
		if at := native.Uint64(meta[48:]); !found || at > latest {
			found, latest = true, at
			root, p.end = native.Uint64(meta[16:]), native.Uint64(meta[40:])
		}
	}
	if !found || p.end > math.MaxInt64/uint64(p.size) {
		return 0, errors.New("it has no header")
	}
	return root, nil
}

// page reads a page with those that continue it.
func (p *pages) page(id uint64) ([]byte, error) {
	if id >= p.end {
		return nil, fmt.Errorf("page %d: there are %d", id, p.end)
	}
	head := make([]byte, p.size)
	if _, err := p.file.ReadAt(head, int64(id)*int64(p.size)); err != nil {
		return nil, fmt.Errorf("page %d: %w", id, err)
	}
	if is := native.Uint64(head); is != id {
		return nil, fmt.Errorf("page %d: it says that it is page %d", id, is)
	}
	more := uint64(native.Uint32(head[12:]))
	if id+more >= p.end {
		return nil, fmt.Errorf("page %d: it goes on for %d pages of %d", id, more, p.end)
	}
	for at := id; at <= id+more; at++ {
		if p.seen[at] {
			return nil, fmt.Errorf("page %d: it stands in two places", at)
		}
		p.seen[at] = true
	}
	// The last byte first: a length that is wrong must not take up the memory.
	last := make([]byte, 1)
	if _, err := p.file.ReadAt(last, int64(id+more+1)*int64(p.size)-1); err != nil {
		return nil, fmt.Errorf("page %d: %w", id+more, err)
	}
	whole := append(head, make([]byte, int(more)*p.size)...)
	if _, err := p.file.ReadAt(whole[p.size:], int64(id+1)*int64(p.size)); err != nil {
		return nil, fmt.Errorf("page %d: %w", id, err)
	}
	return whole, nil
}

// tree looks at a page and all below it. Their keys are from least on, which may
// be nil, and before end, which may be nil.
func (p *pages) tree(id uint64, least, end []byte, depth int) error {
	if depth > maxDepth {
		return fmt.Errorf("page %d: it stands too deep", id)
	}
	page, err := p.page(id)
	if err != nil {
		return err
	}
	return p.elements(id, page, least, end, depth)
}

func (p *pages) elements(id uint64, page, least, end []byte, depth int) error {
	kind, n := native.Uint16(page[8:]), int(native.Uint16(page[10:]))
	if kind != kindBranch && kind != kindLeaf || kind == kindBranch && n == 0 {
		return fmt.Errorf("page %d: it is of the kind %#x, with %d elements", id, kind, n)
	}
	if pageHead+n*elementHead > len(page) {
		return fmt.Errorf("page %d: it has no room for %d elements", id, n)
	}
	keys, values := make([][]byte, n), make([][]byte, n)
	for i := range n {
		element := page[pageHead+i*elementHead:]
		var at, keyLen, valueLen uint64
		if kind == kindBranch {
			at, keyLen = uint64(native.Uint32(element)), uint64(native.Uint32(element[4:]))
			values[i] = element[8:16]
		} else {
			at, keyLen, valueLen = uint64(native.Uint32(element[4:])), uint64(native.Uint32(element[8:])), uint64(native.Uint32(element[12:]))
		}
		if at < elementHead || at+keyLen+valueLen > uint64(len(element)) {
			return fmt.Errorf("page %d: element %d stands outside", id, i)
		}
		keys[i] = element[at : at+keyLen]
		if kind == kindLeaf {
			values[i] = element[at+keyLen : at+keyLen+valueLen]
		}
		before := least
		if i > 0 {
			before = keys[i-1]
		}
		if order := bytes.Compare(before, keys[i]); order > 0 || order == 0 && i > 0 || end != nil && bytes.Compare(keys[i], end) >= 0 {
			return fmt.Errorf("page %d: element %d is not in order", id, i)
		}
	}
	for i := range n {
		var err error
		switch {
		case kind == kindBranch:
			next := end
			if i+1 < n {
				next = keys[i+1]
			}
			err = p.tree(native.Uint64(values[i]), keys[i], next, depth+1)
		case native.Uint32(page[pageHead+i*elementHead:])&elementBucket != 0:
			err = p.bucket(id, values[i], depth+1)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// bucket looks at a bucket, whose pages are its own or, of a small one, stand in
// the value.
func (p *pages) bucket(id uint64, value []byte, depth int) error {
	if len(value) < inlineHead {
		return fmt.Errorf("page %d: a bucket is cut short", id)
	}
	if root := native.Uint64(value); root != 0 {
		return p.tree(root, nil, nil, depth)
	}
	page := value[inlineHead:]
	if len(page) < pageHead || native.Uint16(page[8:]) != kindLeaf || depth > maxDepth {
		return fmt.Errorf("page %d: a bucket inside is none", id)
	}
	return p.elements(id, page, nil, nil, depth)
}

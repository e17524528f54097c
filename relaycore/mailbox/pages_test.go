package mailbox

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.etcd.io/bbolt"
)

// spoilt is a file with branches, leaves and records of several pages, cut behind
// the last page that it has ever used.
func spoilt(t *testing.T) (content []byte, used int) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "mailbox")
	f := openTest(t, path, plenty(), start)
	for i := range 400 {
		mustPut(t, f, sized(letter(i%40, 3, i, ""), 200+i*7%5000), start)
	}
	mustClose(t, f)
	change(t, path, func(tx *bbolt.Tx) error {
		used = int(tx.Size() / int64(os.Getpagesize()))
		return nil
	})
	return mustRead(t, path)[:(used+1)*os.Getpagesize()], used
}

// Whatever is damaged in a file, opening it is an error or not: it never ends the
// process, nor waits for ever, and what opens can be written to and closed.
func TestDamagedPages(t *testing.T) {
	content, used := spoilt(t)
	size := os.Getpagesize()
	random := rand.New(rand.NewPCG(1, 2))
	refused := 0
	for i := range 300 {
		damaged := bytes.Clone(content)
		var what strings.Builder
		poke := func(at int, b byte) {
			damaged[at] = b
			fmt.Fprintf(&what, " byte %d of page %d is %#x", at%size, at/size, b)
		}
		page := func() int { return random.IntN(used) }
		switch i % 5 {
		case 0: // a header
			poke(page()*size+random.IntN(pageHead), byte(random.IntN(4)))
		case 1: // an element
			poke(page()*size+pageHead+random.IntN(8*elementHead), byte(random.IntN(256)))
		case 2: // several
			for range 1 + random.IntN(4) {
				poke(page()*size+random.IntN(128), byte(random.IntN(256)))
			}
		case 3: // a page in another's place, which then stands in two
			from, to := page(), page()
			copy(damaged[to*size:(to+1)*size], damaged[from*size:])
			fmt.Fprintf(&what, " page %d is a copy of page %d", to, from)
			if random.IntN(2) == 0 {
				native.PutUint64(damaged[to*size:], uint64(to))
			}
		case 4:
			damaged = damaged[:2*size+random.IntN(len(damaged)-2*size)]
			fmt.Fprintf(&what, " %d bytes", len(damaged))
		}
		path := filepath.Join(t.TempDir(), fmt.Sprint(i))
		if err := os.WriteFile(path, damaged, 0o600); err != nil {
			t.Fatal(err)
		}
		t.Log(what.String()) // which is all that is left where the process ends
		f, err := openFile(path, testKey, plenty(), start, fast())
		if err != nil {
			refused++
			if !strings.Contains(err.Error(), path) {
				t.Errorf("%v", err)
			}
			continue
		}
		for to := range 40 {
			f.Read(identity(to), 0, 10, 1<<20, start)
		}
		f.Ack(identity(1), ids(1, 41, 81), start)
		f.Put(letter(1, 2, 9999, "more"), start)
		f.Close()
	}
	if refused < 100 {
		t.Errorf("%d of 300 were refused", refused)
	}
}

// Each rule by itself, on a file that is well otherwise.
func TestCheckPages(t *testing.T) {
	content, used := spoilt(t)
	size := os.Getpagesize()
	check := func(content []byte) error { return checkPages(bytes.NewReader(content), size) }
	if err := check(content); err != nil {
		t.Fatalf("a file that is well: %v", err)
	}
	// A branch and a leaf of the messages, and the page of the buckets.
	var branch, leaf, wide int
	p := pages{file: bytes.NewReader(content), size: size, seen: map[uint64]bool{}}
	root, err := p.root()
	if err != nil || int(p.end) != used {
		t.Fatalf("%d pages, want %d, %v", p.end, used, err)
	}
	if err := p.tree(root, nil, nil, 0); err != nil {
		t.Fatal(err)
	}
	for id := 2; id < used; id++ {
		head := content[id*size:]
		if !p.seen[uint64(id)] || native.Uint64(head) != uint64(id) || id == int(root) {
			continue
		}
		switch n := native.Uint16(head[10:]); {
		case native.Uint16(head[8:]) == kindBranch && n > 1:
			branch = id
		case native.Uint16(head[8:]) == kindLeaf && native.Uint32(head[12:]) > 0:
			wide = id
		case native.Uint16(head[8:]) == kindLeaf && n > 2:
			leaf = id
		}
	}
	if branch == 0 || leaf == 0 {
		t.Fatalf("branch %d, leaf %d, of several pages %d", branch, leaf, wide)
	}
	for _, row := range []struct {
		name  string
		page  int
		spoil func(page []byte)
		says  string
	}{
		{"another number", leaf, func(p []byte) { native.PutUint64(p, 3000) }, "it says that it is page 3000"},
		{"another kind", leaf, func(p []byte) { native.PutUint16(p[8:], 0x10) }, "of the kind 0x10"},
		{"no elements", branch, func(p []byte) { native.PutUint16(p[10:], 0) }, "with 0 elements"},
		{"too many elements", leaf, func(p []byte) { native.PutUint16(p[10:], 60000) }, "no room for 60000 elements"},
		{"goes on and on", leaf, func(p []byte) { native.PutUint32(p[12:], 1<<31) }, "it goes on for"},
		{"goes on over others", leaf, func(p []byte) { native.PutUint32(p[12:], 20) }, "stands in two places"},
		{"a child that is none", branch, func(p []byte) { native.PutUint64(p[pageHead+8:], uint64(used)) }, fmt.Sprintf("there are %d", used)},
		{"a child twice", branch, func(p []byte) { copy(p[pageHead+elementHead+8:], p[pageHead+8:pageHead+16]) }, "stands in two places"},
		{"its own child", branch, func(p []byte) { native.PutUint64(p[pageHead+8:], uint64(branch)) }, "stands in two places"},
		{"a key outside", leaf, func(p []byte) { native.PutUint32(p[pageHead+4:], 1<<30) }, "stands outside"},
		{"a key in the header", leaf, func(p []byte) { native.PutUint32(p[pageHead+4:], 0) }, "stands outside"},
		{"a length outside", leaf, func(p []byte) { native.PutUint32(p[pageHead+12:], 1<<30) }, "stands outside"},
		{"a key in another's place", leaf, func(p []byte) {
			at := pageHead + 4 + int(native.Uint32(p[pageHead+4:])) - 4
			copy(p[at:], bytes.Repeat([]byte{0xff}, 8))
		}, "not in order"},
	} {
		damaged := bytes.Clone(content)
		row.spoil(damaged[row.page*size:])
		if err := check(damaged); err == nil || !strings.Contains(err.Error(), row.says) {
			t.Errorf("%s: %v", row.name, err)
		}
	}
	if err := check(content[:leaf*size+size/2]); err == nil {
		t.Error("cut in a page that is in use")
	}
	for id := range 2 {
		damaged := bytes.Clone(content)
		damaged[id*size+pageHead+40] ^= 1
		if err := check(damaged); err != nil {
			t.Errorf("one header of two is damaged: %v", err)
		}
		damaged[(1-id)*size+pageHead+40] ^= 1
		if err := check(damaged); err == nil {
			t.Error("both headers are damaged")
		}
	}
}

// Looking and opening say the same of what is no file.
func TestNoRegularFile(t *testing.T) {
	path := t.TempDir()
	_, err := OpenFile(path, testKey, plenty(), start)
	for _, err := range []error{err, Look(path, testKey)} {
		if err == nil || !strings.Contains(err.Error(), "no regular file") {
			t.Errorf("%v", err)
		}
	}
}

// Opening what is damaged leaves no lock behind: check --machine says the same twice.
func TestDamagedTwice(t *testing.T) {
	content, _ := spoilt(t)
	path := filepath.Join(t.TempDir(), "mailbox")
	size := os.Getpagesize()
	for id := 2; id < 40; id++ {
		native.PutUint64(content[id*size:], 1<<40)
	}
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := OpenFile(path, testKey, plenty(), start); err == nil || errors.Is(err, ErrOpenElsewhere) || !strings.Contains(err.Error(), "damaged") {
			t.Errorf("%v", err)
		}
	}
}

package admission

// debtorBound is how many rows without connections a table keeps because their
// bucket is not full again. Beyond it the row nearest to full is forgotten: the
// one that loses the least debt by it.
const debtorBound = 1 << 16

const (
	chunkBits = 9
	chunkRows = 1 << chunkBits
)

// key is the keyed hash of a host or a site; the address itself is not kept.
type key struct{ hi, lo uint64 }

// row is what one host or one site holds.
type row struct {
	key  key
	full int64  // the time of the gate at which its bucket is full again
	open uint32 // connections
	link uint32 // a debtor: its place in the heap, counted from 1; a free row: the next free one
}

// debtor is a row in the heap, beside the time by which it is ordered.
type debtor struct {
	full int64
	row  uint32
}

// table holds the rows with open connections, and the debtors: those without
// whose bucket is not full again. Leases hold the numbers of rows, so a row
// keeps its number while it lives. Row 0 is nobody's: it stands for a key that
// has no row, with no connection and a full bucket.
type table struct {
	index   map[key]uint32
	chunks  []*[chunkRows]row // grown by the chunk: no growth copies the rows
	used    uint32            // rows that were ever given out, row 0 among them
	free    uint32            // the first free row below used; 0: none
	debtors []debtor          // a heap, the row nearest to full first
	bound   int               // of debtors
}

func newTable() table {
	return table{
		index:  make(map[key]uint32),
		chunks: []*[chunkRows]row{new([chunkRows]row)},
		used:   1,
		bound:  debtorBound,
	}
}

func (t *table) row(i uint32) *row {
	return &t.chunks[i>>chunkBits][i&(chunkRows-1)]
}

// find returns the row of k, 0 if it has none.
func (t *table) find(k key) uint32 { return t.index[k] }

// take counts one connection on row i, which find gave for k, and sets the
// time at which its bucket is full again. It returns the row that was charged.
func (t *table) take(i uint32, k key, full int64) uint32 {
	if i == 0 {
		i = t.add(k)
	}
	r := t.row(i)
	if r.link != 0 {
		t.unqueue(int(r.link) - 1)
	}
	r.open++
	r.full = full
	return i
}

// release gives back one connection of row i at the time at.
func (t *table) release(i uint32, at int64) {
	r := t.row(i)
	r.open--
	switch {
	case r.open > 0:
	case r.full <= at:
		t.drop(i)
	default:
		t.queue(i)
		if len(t.debtors) > t.bound {
			t.forget()
		}
	}
}

// sweep drops at most n debtors whose bucket is full again at the time at, and
// reports whether there are more.
func (t *table) sweep(at int64, n int) (more bool) {
	for ; len(t.debtors) > 0 && t.debtors[0].full <= at; n-- {
		if n == 0 {
			return true
		}
		t.forget()
	}
	return false
}

// forget drops the debtor that is nearest to full.
func (t *table) forget() {
	i := t.debtors[0].row
	t.unqueue(0)
	t.drop(i)
}

func (t *table) add(k key) uint32 {
	i := t.free
	if i != 0 {
		t.free = t.row(i).link
	} else {
		i = t.used
		t.used++
		if int(i>>chunkBits) == len(t.chunks) {
			t.chunks = append(t.chunks, new([chunkRows]row))
		}
	}
	*t.row(i) = row{key: k}
	t.index[k] = i
	return i
}

func (t *table) drop(i uint32) {
	r := t.row(i)
	delete(t.index, r.key)
	*r = row{link: t.free}
	t.free = i
	if len(t.index) == 0 && len(t.chunks) > 1 {
		// A burst has passed. Maps and slices do not shrink by themselves.
		bound := t.bound
		*t = newTable()
		t.bound = bound
	}
}

// queue puts row i among the debtors.
func (t *table) queue(i uint32) {
	t.debtors = append(t.debtors, debtor{})
	t.up(len(t.debtors)-1, debtor{t.row(i).full, i})
}

// unqueue takes the debtor at the place at out of the heap.
func (t *table) unqueue(at int) {
	t.row(t.debtors[at].row).link = 0
	last := len(t.debtors) - 1
	moved := t.debtors[last]
	t.debtors = t.debtors[:last]
	switch {
	case at == last:
	case at > 0 && moved.full < t.debtors[(at-1)/2].full:
		t.up(at, moved)
	default:
		t.down(at, moved)
	}
}

func (t *table) place(at int, d debtor) {
	t.debtors[at] = d
	t.row(d.row).link = uint32(at) + 1
}

// up places d at the place at, or above.
func (t *table) up(at int, d debtor) {
	for at > 0 {
		parent := (at - 1) / 2
		if t.debtors[parent].full <= d.full {
			break
		}
		t.place(at, t.debtors[parent])
		at = parent
	}
	t.place(at, d)
}

// down places d at the place at, or below.
func (t *table) down(at int, d debtor) {
	for {
		child := 2*at + 1
		if child >= len(t.debtors) {
			break
		}
		if child+1 < len(t.debtors) && t.debtors[child+1].full < t.debtors[child].full {
			child++
		}
		if d.full <= t.debtors[child].full {
			break
		}
		t.place(at, t.debtors[child])
		at = child
	}
	t.place(at, d)
}

package mailbox

import "maps"

// table is a map that gives back the memory of a burst, which a map does not do
// by itself. The keys that have left since the last time pay for it.
type table[K comparable, V any] struct {
	rows map[K]V
	peak int // the most rows since the map was made
}

// shrinkFrom is how many rows a table must have had for its memory to be made anew.
const shrinkFrom = 256

func (t *table[K, V]) set(k K, v V) {
	if t.rows == nil {
		t.rows = make(map[K]V)
	}
	t.rows[k] = v
	t.peak = max(t.peak, len(t.rows))
}

func (t *table[K, V]) drop(k K) {
	delete(t.rows, k)
	if t.peak < shrinkFrom || len(t.rows) > t.peak/4 {
		return
	}
	old := t.rows
	t.rows, t.peak = make(map[K]V, len(old)), len(old)
	maps.Copy(t.rows, old)
}

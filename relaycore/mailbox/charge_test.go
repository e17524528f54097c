package mailbox

import (
	"fmt"
	"runtime"
	"testing"
	"time"
)

func heap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// The memory that messages take, and what is charged for it. The dearest are
// those that have recipient, sender and source to themselves.
var loads = []struct {
	name       string
	n, size    int
	perMailbox int
	oneSource  bool
}{
	{"empty, each to another", 20_000, 0, 1, false},
	// Just behind the moment at which maps and slices have grown.
	{"empty, each to another, grown tables", 28_800, 0, 1, false},
	{"one byte, each to another", 20_000, 1, 1, false},
	{"steady, half a mailbox each", 20_000, 1226, 500, true},
	{"just over a size class", 4_000, 6913, 10, false},
	{"just over 32 KiB", 1_000, 32<<10 + 1, 10, false},
	{"64 KiB", 1_000, 64 << 10, 62, false},
	{"largest", 20, 4<<20 - 43, 2, false},
}

func load(t testing.TB, s Store, n, size, perMailbox int, oneSource bool) {
	payload := make([]byte, size)
	for i := range n {
		m := letter(i/perMailbox, i, i, "")
		m.Payload = payload
		m.Source = source(7)
		if !oneSource {
			m.Source = prefixOf([16]byte{byte(i >> 16), byte(i >> 8), byte(i), 1})
		}
		mustPut(t, s, m, start)
	}
}

// Every byte that is held is charged, overhead too.
func TestChargeCoversMemory(t *testing.T) {
	l := plenty()
	l.TTL = time.Hour
	for _, row := range loads {
		t.Run(row.name, func(t *testing.T) {
			before := heap()
			s := NewMemory(l, start)
			load(t, s, row.n, row.size, row.perMailbox, row.oneSource)
			took := heap() - before
			charged := s.Stats(start).Bytes
			if took > charged {
				t.Errorf("%d bytes are charged for %d: %d for one", charged, took, took/int64(row.n))
			}
			if took < charged/3 {
				t.Errorf("%d bytes are charged for %d: this measures nothing, or charges far too much", charged, took)
			}
			t.Logf("%d bytes a message beside its payload, %d charged", took/int64(row.n)-Charge(row.size)+Overhead, Overhead)
			// What has left takes nothing.
			s.Expire(start.Add(time.Hour))
			if left := heap() - before; left > 256<<10 {
				t.Errorf("%d bytes are left of an empty mailbox", left)
			}
			runtime.KeepAlive(s)
		})
	}
}

// Beside the file the payloads take no memory.
func TestFileKeepsNoPayload(t *testing.T) {
	const n, size = 200, 64 << 10
	before := heap()
	f := openTest(t, t.TempDir()+"/mailbox", plenty(), start)
	load(t, f, n, size, 50, false)
	if took := heap() - before; took > n*size/8 {
		t.Errorf("%d messages of %d bytes take %d bytes of memory", n, size, took)
	}
}

func TestCharge(t *testing.T) {
	for _, n := range []int{1, 8, 9, 1226, 6913, 32768, 32769, 65536, 100_000, 4<<20 - 43} {
		if got, want := Charge(n), int64(cap(append([]byte(nil), make([]byte, n)...)))+Overhead; got != want {
			t.Errorf("%d bytes are charged %d, they take %d", n, got, want)
		}
	}
	if Charge(0) != Overhead {
		t.Errorf("an empty message is charged %d", Charge(0))
	}
}

// A burst's tables go away, also while some of it stays.
func TestTableShrinks(t *testing.T) {
	before := heap()
	var tab table[int, [4]int]
	for i := range 100_000 {
		tab.set(i, [4]int{i})
	}
	if took := heap() - before; took < 100_000*40 {
		t.Fatalf("a burst takes %d bytes: this test measures nothing", took)
	}
	for i := range 99_900 {
		tab.drop(i)
	}
	if left := heap() - before; left > 64<<10 {
		t.Errorf("%d bytes are left for %d rows", left, len(tab.rows))
	}
	for i := 99_900; i < 100_000; i++ {
		if tab.rows[i] != [4]int{i} {
			t.Fatalf("row %d is %v", i, tab.rows[i])
		}
	}
}

func BenchmarkPutRead(b *testing.B) {
	for _, size := range []int{100, 1226, 64 << 10} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			s := NewMemory(plenty(), start)
			m := sized(letter(1, 7, 1, ""), size)
			b.ReportAllocs()
			for b.Loop() {
				mustPut(b, s, m, start)
				if got, _ := s.Read(m.Recipient, 0, 1, 1<<20, start); len(got) != 1 {
					b.Fatal("nothing waits")
				}
				s.Ack(m.Recipient, ids(1), start)
			}
		})
	}
}

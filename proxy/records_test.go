package proxy

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"
)

// record is a TLS record with a body of so many bytes.
func record(body int) []byte {
	return append([]byte{23, 3, 3, byte(body >> 8), byte(body)}, make([]byte, body)...)
}

// Records are counted when they have come whole, in whatever pieces.
func TestRecordsAreCounted(t *testing.T) {
	sizes := []int{22, 0, 1, 16408, 300, 65535, 22, 22}
	var stream []byte
	for _, size := range sizes {
		stream = append(stream, record(size)...)
	}
	random := rand.New(rand.NewPCG(1, 2))
	for _, most := range []int{1, 2, 5, 7, 1000, len(stream)} {
		t.Run(fmt.Sprint(most), func(t *testing.T) {
			var r records
			for rest := stream; len(rest) > 0; {
				n := min(1+random.IntN(most), len(rest))
				r.saw(rest[:n])
				rest = rest[n:]
				if len(rest) == 1 && r.whole != uint32(len(sizes)-1) {
					t.Errorf("%d records have come before the last byte of %d", r.whole, len(sizes))
				}
			}
			if r.whole != uint32(len(sizes)) {
				t.Errorf("%d records have come, want %d", r.whole, len(sizes))
			}
		})
	}
}

// What is due is 8 KiB for each record that has brought no data, once.
func TestBarrenRecordsAreDue(t *testing.T) {
	var r records
	take := func(n int) {
		for range n {
			r.saw(record(22))
		}
	}
	take(4)
	if r.due() != 0 {
		t.Error("a stream without TLS owes for records")
	}
	r.begin()
	if r.due() != 0 {
		t.Error("a handshake's records are charged")
	}
	for _, row := range []struct {
		whole, data int
		kib         int64
	}{
		{0, 0, 0}, {1, 0, 8}, {0, 0, 0}, {3, 2, 8}, {5, 5, 0},
		{0, 2, 0}, // two reads of one record: they are not charged, and count for two others
		{3, 0, 8},
	} {
		take(row.whole)
		r.data += uint32(row.data)
		if got := r.due(); got != row.kib<<10 {
			t.Errorf("%d records, %d reads: %d bytes are due, want %d KiB", row.whole, row.data, got, row.kib)
		}
	}
}

// A client whose records carry no data is read as slowly as one that sends much,
// and one whose records do is not.
func TestBarrenRecordsAreThrottled(t *testing.T) {
	for _, row := range []struct {
		name   string
		barren int // in each flight, beside a byte of data
		pause  time.Duration
	}{
		{"data alone", 0, 0},
		{"key updates", 8, (8*8*barrenCost - 256<<10) * time.Second / (32 << 10)},
	} {
		t.Run(row.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				e := newEdge(t, func(c *edgeConfig) {
					terminating(c)
					c.limits.RateLimitBPS, c.limits.RateLimitBurstBytes = 32<<10, 256<<10
				})
				r := rekeyingClient(e)
				go io.Copy(io.Discard, r.raw)
				relay, _, _ := e.accept()
				var flights []byte
				for range 8 {
					for range row.barren {
						flights = append(flights, r.update()...)
					}
					flights = append(flights, r.data("x")...)
				}
				mustWrite(t, r.raw, flights)
				wantRead(t, relay, bytes.Repeat([]byte("x"), 8))
				synctest.Wait()
				began := time.Now()
				mustWrite(t, r.raw, r.data("y"))
				wantRead(t, relay, []byte("y"))
				// What the bytes themselves owe comes on top.
				if took := time.Since(began); took < row.pause || took > row.pause+time.Second {
					t.Errorf("the next byte took %v, want %v", took, row.pause)
				}
				r.raw.Close()
				relay.Close()
			})
		})
	}
}

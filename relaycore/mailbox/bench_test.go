package mailbox

import (
	"fmt"
	"path/filepath"
	"sync/atomic"
	"testing"
)

// Senders that each wait for the disk before they send on: steady messages a second.
func BenchmarkFilePut(b *testing.B) {
	for _, senders := range []int{1, 16, 256} {
		b.Run(fmt.Sprintf("senders=%d", senders), func(b *testing.B) {
			f, err := OpenFile(filepath.Join(b.TempDir(), "mailbox"), testKey, plenty(), start)
			if err != nil {
				b.Fatal(err)
			}
			defer f.Close()
			var n atomic.Int64
			b.SetParallelism(senders / 2) // times GOMAXPROCS, which is 2 at least where this was measured
			if senders == 1 {
				for b.Loop() {
					put(b, f, int(n.Add(1)))
				}
			} else {
				b.RunParallel(func(pb *testing.PB) {
					for pb.Next() {
						put(b, f, int(n.Add(1)))
					}
				})
			}
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "messages/s")
		})
	}
}

func put(b *testing.B, s Store, n int) {
	m := sized(letter(n/MaxSteady, n%100, n, ""), SteadySize)
	m.Source = source(n % 1000)
	if err := s.Put(m, start); err != nil {
		b.Error(err)
	}
}

// A start with a full queue of steady messages.
func BenchmarkOpen(b *testing.B) {
	path := filepath.Join(b.TempDir(), "mailbox")
	l := plenty()
	l.Sources = false
	f, err := openFile(path, testKey, l, start, fast())
	if err != nil {
		b.Fatal(err)
	}
	const messages = 100_000
	done := make(chan bool)
	for s := range 100 {
		go func() {
			for i := range messages / 100 {
				put(b, f, i*100+s)
			}
			done <- true
		}()
	}
	for range 100 {
		<-done
	}
	f.Close()
	for b.Loop() {
		f, err := OpenFile(path, testKey, l, start)
		if err != nil || f.Opened().Messages != messages {
			b.Fatal(err, f.Opened())
		}
		f.Close()
	}
	b.ReportMetric(float64(len(mustRead(b, path)))/messages, "bytes/message")
}

// A mailbox's backlog, read from the file in portions.
func BenchmarkFileRead(b *testing.B) {
	f := openTest(b, filepath.Join(b.TempDir(), "mailbox"), plenty(), start)
	for n := range MaxSteady {
		put(b, f, n)
	}
	for b.Loop() {
		r := f.Reader(identity(0))
		for n := 0; n < 64; {
			portion, err := r.Next(start)
			if err != nil || len(portion) == 0 {
				b.Fatal(n, err)
			}
			n += len(portion)
		}
		r.Close()
	}
	b.ReportMetric(64*float64(b.N)/b.Elapsed().Seconds(), "messages/s")
}

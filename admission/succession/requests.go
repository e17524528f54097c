package succession

import (
	"context"
	"encoding/binary"
	"time"

	"relayedge/admission"
	"relayedge/internal/handover"
)

// Requests are what a process counts of requests in its memory. Either may be nil.
type Requests struct {
	Windows     *admission.FixedWindows
	Credentials *admission.Credentials
}

// rowsEach is how many rows go in one message.
const rowsEach = 1000

// Hand gives the heir what was counted so far and what is known, and has it count
// from here on. TakeBack ends that.
func (h *Heir) Hand(r Requests) error {
	now := time.Now()
	if r.Windows != nil {
		if err := h.sendRows(kindWindows, r.Windows.Retire(h.elder.count, now)); err != nil {
			return err
		}
	}
	if r.Credentials != nil {
		return h.sendRows(kindCredentials, r.Credentials.Known(now))
	}
	return nil
}

// TakeBack has the process count its requests by itself again.
func (r Requests) TakeBack() {
	if r.Windows != nil {
		r.Windows.Resume()
	}
}

func (h *Heir) sendRows(kind byte, rows []admission.Counted) error {
	for len(rows) > 0 {
		n := min(len(rows), rowsEach)
		b := binary.BigEndian.AppendUint32(nil, uint32(n))
		for _, c := range rows[:n] {
			b = append(b, c.Key[:]...)
			b = binary.BigEndian.AppendUint64(b, uint64(c.Count))
			b = binary.BigEndian.AppendUint64(b, uint64(c.Age))
		}
		if err := h.line.Send(handover.Message{Kind: kind, Body: b}); err != nil {
			return err
		}
		rows = rows[n:]
	}
	return nil
}

func readRows(b []byte) (rows []admission.Counted, err error) {
	r := reader{b: b}
	for range r.count(32) {
		rows = append(rows, admission.Counted{Key: admission.Key(r.take(16)), Count: int64(r.u64()), Age: time.Duration(r.u64())})
	}
	return rows, r.err()
}

// inherit takes rows that an elder hands over.
func (f *Followed) inherit(m handover.Message) bool {
	rows, err := readRows(m.Body)
	if err != nil {
		return false
	}
	r, now := f.successor.requests, time.Now()
	switch {
	case m.Kind == kindWindows && r.Windows != nil:
		r.Windows.Inherit(rows, now)
	case m.Kind == kindCredentials && r.Credentials != nil:
		r.Credentials.Inherit(rows, now)
	}
	return true
}

// count has the newest heir count a request of key. false: there is none any longer.
func (e *Elder) count(_ context.Context, key admission.Key) (admission.Decision, bool) {
	a, _, h := e.question(func(number uint64) handover.Message {
		return handover.Message{Kind: kindCount, Body: append(binary.BigEndian.AppendUint64(nil, number), key[:]...)}
	})
	if h != nil {
		h.taken()
	}
	if a.reason != "" {
		return uncounted, true
	}
	return a.decision, h != nil
}

// uncounted is the decision where whoever counts does not answer.
var uncounted = admission.Decision{Unavailable: true, RetryAfter: time.Second}

func readCount(b []byte) (number uint64, key admission.Key, err error) {
	r := reader{b: b}
	number, key = r.u64(), admission.Key(r.take(16))
	return number, key, r.err()
}

func appendCounted(b []byte, number uint64, d admission.Decision) []byte {
	b = append(binary.BigEndian.AppendUint64(b, number), boolByte(d.Allowed), boolByte(d.Unavailable))
	for _, n := range []int64{d.Limit, d.Remaining, d.Reset.UnixNano(), int64(d.RetryAfter)} {
		b = binary.BigEndian.AppendUint64(b, uint64(n))
	}
	return b
}

func readCounted(b []byte) (number uint64, d admission.Decision, err error) {
	r := reader{b: b}
	number = r.u64()
	flags := r.take(2)
	d.Allowed, d.Unavailable = flags[0] == 1, flags[1] == 1
	d.Limit, d.Remaining = int64(r.u64()), int64(r.u64())
	d.Reset = time.Unix(0, int64(r.u64()))
	d.RetryAfter = time.Duration(r.u64())
	return number, d, r.err()
}

// decideCount answers to a request that is to be counted.
func (f *Followed) decideCount(number uint64, key admission.Key) {
	d := uncounted
	if w := f.successor.requests.Windows; w != nil {
		d = w.Take(context.Background(), key, time.Now())
	}
	f.line.Send(handover.Message{Kind: kindCounted, Body: appendCounted(nil, number, d)}) // who does not hear it has ended
}

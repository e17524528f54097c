package succession

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"time"

	"relayedge/admission"
)

// Kinds of messages. Those from Others on are not this package's.
const (
	kindTold        byte = iota + 1 // what an elder holds
	kindFinal                       // all was told, and the elder decides nothing from here on
	kindAsk                         // for a connection
	kindAnswer                      // to an ask
	kindTakeOver                    // a successor decides again: those that were newer have ended
	kindCaughtUp                    // the elder has told that successor all
	kindFarewell                    // the successor ends on purpose
	kindLine                        // the end of a line to one more successor
	kindWhole                       // the elder has told all for the first time
	kindHeld                        // and the successor has heard it
	kindLined                       // that one decides, and is told all
	kindCount                       // a request is to be counted
	kindCounted                     // and was
	kindWindows                     // requests that were counted so far
	kindCredentials                 // that are known

	Others byte = 32
)

const (
	// toldKeys is how many keys are told in one message: it must fit.
	toldKeys  = 256
	heldBytes = 28 // 16 of the key, 4 of connections, 8 of debt
)

var errMalformed = errors.New("the other process sends what cannot be understood; it may be of another version")

func appendTold(b []byte, t admission.Told) []byte {
	b = binary.BigEndian.AppendUint32(b, uint32(t.Open))
	for _, keys := range [][]admission.Held{t.Hosts, t.Sites} {
		b = binary.BigEndian.AppendUint32(b, uint32(len(keys)))
		for _, h := range keys {
			b = append(b, h.Key[:]...)
			b = binary.BigEndian.AppendUint32(b, uint32(h.Open))
			b = binary.BigEndian.AppendUint64(b, uint64(h.Debt))
		}
	}
	b = binary.BigEndian.AppendUint32(b, uint32(len(t.Settled)))
	for _, n := range t.Settled {
		b = binary.BigEndian.AppendUint64(b, n)
	}
	return b
}

// reader reads numbers off a body; bad says that there were too few, or too large ones.
type reader struct {
	b   []byte
	bad bool
}

func (r *reader) take(n int) []byte {
	if len(r.b) < n {
		r.bad = true
		return make([]byte, n)
	}
	part := r.b[:n]
	r.b = r.b[n:]
	return part
}

func (r *reader) u32() uint32 { return binary.BigEndian.Uint32(r.take(4)) }
func (r *reader) u64() uint64 { return binary.BigEndian.Uint64(r.take(8)) }

// count reads how many things follow, each of so many bytes.
func (r *reader) count(each int) int {
	n := int(r.u32())
	if n > len(r.b)/each {
		r.bad = true
		return 0
	}
	return n
}

func (r *reader) err() error {
	if r.bad || len(r.b) > 0 {
		return errMalformed
	}
	return nil
}

// maxOpen bounds a count: what is beyond has been made up.
const maxOpen = 1 << 30

func readTold(b []byte) (t admission.Told, err error) {
	r := reader{b: b}
	open := r.u32()
	t.Open = int(open)
	r.bad = r.bad || open > maxOpen
	for _, keys := range []*[]admission.Held{&t.Hosts, &t.Sites} {
		for range r.count(heldBytes) {
			h := admission.Held{Key: admission.SharedKey(r.take(16)), Open: int(r.u32()), Debt: time.Duration(r.u64())}
			r.bad = r.bad || h.Open > maxOpen || h.Debt < 0
			*keys = append(*keys, h)
		}
	}
	for range r.count(8) {
		t.Settled = append(t.Settled, r.u64())
	}
	return t, r.err()
}

func appendAsk(b []byte, number uint64, q admission.Question) []byte {
	b = binary.BigEndian.AppendUint64(b, number)
	b = append(b, boolByte(q.All))
	if !q.Addr.IsValid() {
		return b
	}
	addr := q.Addr.As16() // the gate unmaps it, and knows no zones
	return append(b, addr[:]...)
}

func readAsk(b []byte) (number uint64, q admission.Question, err error) {
	r := reader{b: b}
	number, q.All = r.u64(), r.take(1)[0] == 1
	if len(r.b) > 0 {
		q.Addr = netip.AddrFrom16([16]byte(r.take(16)))
	}
	return number, q, r.err()
}

func appendAnswer(b []byte, number uint64, reason admission.Reason) []byte {
	return append(binary.BigEndian.AppendUint64(b, number), reason...)
}

func readAnswer(b []byte) (number uint64, reason admission.Reason, err error) {
	r := reader{b: b}
	number = r.u64()
	reason = admission.Reason(r.b)
	switch reason {
	case "", admission.Denied, admission.StoreUnavailable, admission.MaxConnections, admission.PerIPCap, admission.PerPrefixCap, admission.ConnectionRate:
	default:
		r.bad = true
	}
	r.b = nil
	return number, reason, r.err()
}

func boolByte(b bool) byte {
	if b {
		return 1
	}
	return 0
}

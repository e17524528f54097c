package admission

import (
	"encoding/binary"
	"errors"
	"time"
)

// handedFleet is what a process hands over of its side of a fleet: the next one goes
// on as the same edge, so that nothing is claimed twice.
type handedFleet struct {
	Life, Number uint64
	Edges, Heard int64
	Renewed      int64 // how long ago, in nanoseconds
	Keys         int64
}

// handedKey is what it knows of a key, of all connections by the zero key. Times are
// told as lengths from now.
type handedKey struct {
	Key                                 SharedKey
	Claim, Total, Refused, Recent, Most int64
	Tight, Rate                         bool
	Keep, Full, Spent, Sent, Fold       int64
}

var errHandedFleet = errors.New("admission: what another process knows of its fleet cannot be read")

// Hand returns what the process knows of the fleet, for the one that takes its place.
// It beats no longer, and no beat is under way.
func (f *Fleet) Hand(now time.Time) []byte {
	g := f.gate
	at := g.at(now)
	g.mu.Lock()
	defer g.mu.Unlock()
	f.learn(at)
	head := handedFleet{
		Life: f.life, Number: f.latest.Number, Edges: int64(f.edges), Heard: int64(f.heard),
		Renewed: int64(now.Sub(f.renewed)), Keys: int64(len(f.keys)),
	}
	b, _ := binary.Append(nil, binary.BigEndian, head) // of fixed sizes: it cannot fail
	b, _ = binary.Append(b, binary.BigEndian, f.all.handed(SharedKey{}, at))
	for k, m := range f.keys {
		b, _ = binary.Append(b, binary.BigEndian, m.handed(k.shared(), at))
	}
	return b
}

func (m *shared) handed(k SharedKey, at int64) handedKey {
	return handedKey{
		Key: k, Claim: int64(m.claim), Total: int64(m.total), Refused: int64(m.refused), Recent: int64(m.recent), Most: int64(m.most),
		Tight: m.tight, Rate: m.rate, Keep: m.keep - at, Full: m.full - at, Spent: m.spent, Sent: m.sent, Fold: m.fold,
	}
}

// Inherit has the process go on where another one has stopped, before its first beat.
func (f *Fleet) Inherit(b []byte, now time.Time) error {
	var head handedFleet
	n, err := binary.Decode(b, binary.BigEndian, &head)
	size := binary.Size(handedKey{})
	if err != nil || head.Keys < 0 || head.Keys > knownBound || int64(len(b)-n) != (head.Keys+1)*int64(size) {
		return errHandedFleet
	}
	g := f.gate
	at := g.at(now)
	g.mu.Lock()
	defer g.mu.Unlock()
	f.life, f.latest.Number = head.Life, head.Number
	f.edges, f.heard = int(head.Edges), int(head.Heard)
	f.renewed = now.Add(-time.Duration(head.Renewed))
	for b = b[n:]; len(b) > 0; b = b[size:] {
		var h handedKey
		if _, err := binary.Decode(b, binary.BigEndian, &h); err != nil {
			return errHandedFleet
		}
		m := &f.all
		if h.Key != (SharedKey{}) {
			m = new(shared)
			f.keys[h.Key.key()] = m
		}
		*m = shared{
			claim: int(h.Claim), total: int(h.Total), refused: int(h.Refused), recent: int(h.Recent), most: int(h.Most),
			tight: h.Tight, rate: h.Rate, keep: at + h.Keep, full: at + h.Full, spent: h.Spent, sent: h.Sent, fold: h.Fold,
		}
	}
	f.restart() // the store has it all, but for what was lost on the way
	return nil
}

// TakeBack has the process beat again after the one that it had handed over to has
// ended. It is another edge from here on: what that one claimed ends with its lease,
// and of its own claims it has no more than it uses.
func (f *Fleet) TakeBack() {
	g := f.gate
	g.mu.Lock()
	defer g.mu.Unlock()
	f.life++
	f.all.claim = min(f.all.claim, g.open)
	for k, m := range f.keys {
		open, _ := f.row(k)
		m.claim = min(m.claim, open)
	}
	f.restart()
	f.urgent = false
	f.press()
}

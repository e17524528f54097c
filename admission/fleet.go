package admission

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"time"
)

const (
	// askBatch is how many asks one beat carries at most: a script that answers
	// them must not hold up the store.
	askBatch = 256
	// askedBound is how many keys that the fleet does not know can come up between
	// two beats; those beyond it come up again.
	askedBound = 1024
	// knownBound is how many keys an edge has in the fleet by itself. A host beyond
	// it has here what needs no claim.
	knownBound = 1 << 14
	// claimKept is for how long an edge that has refused somebody for want of a
	// claim keeps what it got for that.
	claimKept = int64(500 * time.Millisecond)
)

// SharedKey names what the edges of a fleet count together: a host or a site, by
// a keyed hash, or with the zero SharedKey all connections.
type SharedKey [16]byte

// Ask is what an edge tells of a key, and would have of it.
type Ask struct {
	Key  SharedKey
	Held int // connections that are open: they count, whatever is answered
	Need int // what it has use for: where that cannot be had, the others give back what they do not use
	Want int // what it would have if nobody is short of it
	Cap  int // of all edges; 0: it tells what it holds, and wants nothing

	Spent time.Duration // what the bucket has paid since the last ask, as the time in which it refills
}

// Answer is what the fleet says of a key.
type Answer struct {
	Key   SharedKey
	Claim int           // connections that this edge may have
	Total int           // the claims of all edges, this one's among them
	Tight bool          // no edge has any without a claim
	Debt  time.Duration // until the bucket of all edges is full again
}

// Beat is what an edge sends to the store of the fleet. The store takes it as one
// step, if it knows the beat before it.
type Beat struct {
	Life   uint64 // grows each time that the edge has been alone: it is another one then
	Number uint64 // grows by one with each beat
	Begin  bool   // it tells of all that this edge holds, so the beat before it does not matter
	Edges  int    // by how many edges this one divides what needs no claim; 0: it does not yet
	Seen   uint64 // the version up to which it knows and keeps what is tight
	News   bool   // it asks for what has changed after the version Cursor
	Cursor uint64
	Asks   []Ask
}

// Reply is what the store says to a beat.
type Reply struct {
	Unknown bool   // it does not know the beat before, and has done nothing
	Edges   int    // that are alive, this one among them
	Version uint64 // up to which Answers tell of all changes, if the beat asked for news
	More    bool   // there are more changes after Version
	Answers []Answer
}

// Fleet is a gate's side of a fleet: several edges that keep their caps and
// connection rates together, over a store that each of them tells what it holds.
// It takes no step by itself and waits for nobody. Whoever has the store carries
// each [Fleet.Beat] there and its reply to [Fleet.Done], often enough; decisions
// of the gate go by what is known then.
//
// Of a cap C that n edges share, each may fill max(1, C/2n) of a host or a site
// without a word, so that hosts with few connections cost the store nothing. Who
// has more than half of that claims what it has, and more ahead of need. The
// claims and what the others have without one never exceed C together. Where they
// would, the key becomes tight: claims alone count then, each edge claims what it
// holds, and what one gives back is there for the next that asks. All connections
// are shared in the same way.
//
// A bucket is shared by its debt: an edge charges n tokens for a connection until
// it has told the others, and then one.
//
// Its methods are for one goroutine, beside which the gate is used.
type Fleet struct {
	// Static.
	gate        *Gate
	lease       time.Duration
	refuseAlone bool
	pressed     chan struct{}

	// Guarded by gate.mu.
	edges  int // 0: this edge is alone, and each limit is its own
	all    shared
	keys   map[key]*shared
	asked  map[key]asked // what came up since the last beat; it never grows beyond its first size
	urgent bool          // pressed has been told since the last beat

	// Owned by the goroutine that beats.
	life    uint64
	begin   bool      // the store may not know this edge, or not as it is
	scan    bool      // there are more edges: what has no claim may need one, and a claim may be too much
	pending []Ask     // that are left for the next beat
	latest  Beat      // the one that is under way, or was
	sent    time.Time // when
	begun   time.Time // when the store took the latest beat that told it all
	renewed time.Time // when the latest beat was sent that the store took
	heard   int       // of Reply.Edges, the latest
	told    int       // what the store has of Beat.Edges
	seen    uint64    // and of Beat.Seen
	cursor  uint64
	more    bool // the news up to cursor are not complete
}

// shared is what this edge knows of a key in the fleet.
type shared struct {
	claim, total int
	tight        bool
	refused      int   // newcomers that a claim would have let in, since the last beat
	recent       int   // the highest cap of the newcomers since the last beat; 0: there were none
	most         int   // the same before the latest beat with any; 0: not known
	keep         int64 // until when it keeps a claim that it does not use

	// The bucket, if rate: it stands here instead of the row.
	rate  bool
	full  int64 // when it is full again, what is not told yet charged fold times
	spent int64 // what is not told yet, in nanoseconds of debt
	sent  int64 // what was told and is not answered
	fold  int64
}

// asked is what came up of a key that the fleet does not know.
type asked struct {
	refused, most int
	spent         int64 // what its bucket has paid, once that is to be told
	fold          int64
}

// FleetOptions are what the edges of a fleet have in common.
type FleetOptions struct {
	// Secret makes them mean the same by a key, and nobody else know what it means.
	Secret []byte
	// Lease is for how long the store counts what an edge holds after its latest beat.
	Lease time.Duration
	// RefuseAlone has an edge that is alone refuse everybody (StoreUnavailable). Else
	// it has its own limits then.
	RefuseAlone bool
}

// NewFleetGate returns a gate whose limits are kept by all edges of a fleet
// together, and its side of that. It is alone until the first reply.
func NewFleetGate(l Limits, o FleetOptions) (*Gate, *Fleet, error) {
	g, err := NewGate(l)
	if err != nil {
		return nil, nil, err
	}
	mac := hmac.New(sha256.New, o.Secret)
	mac.Write([]byte("the tables of a fleet's gates"))
	sum := mac.Sum(nil)
	g.k0, g.k1 = binary.LittleEndian.Uint64(sum[:8]), binary.LittleEndian.Uint64(sum[8:16])
	g.fleet = &Fleet{
		gate: g, lease: o.Lease, refuseAlone: o.RefuseAlone, pressed: make(chan struct{}, 1), begin: true,
		keys: make(map[key]*shared), asked: make(map[key]asked, 2*askedBound),
	}
	return g, g.fleet, nil
}

// Pressed is told when somebody waits for a claim: a beat ahead of its time helps.
func (f *Fleet) Pressed() <-chan struct{} { return f.pressed }

// Edges returns how many edges the caps are shared by; 0: this one is alone, and
// its limits are its own.
func (f *Fleet) Edges() int {
	f.gate.mu.Lock()
	defer f.gate.mu.Unlock()
	return f.edges
}

// Claims returns how many keys this edge has claims of.
func (f *Fleet) Claims() (n int) {
	f.gate.mu.Lock()
	defer f.gate.mu.Unlock()
	for _, m := range f.keys {
		if m.claim > 0 {
			n++
		}
	}
	return n
}

// free returns how much of a cap needs no claim where n edges share it.
func free(most, n int) int { return max(1, most/(2*n)) }

// find returns what is known of k, or nil.
func (f *Fleet) find(k key) *shared {
	if f == nil || f.edges == 0 {
		return nil
	}
	return f.keys[k]
}

// shut reports whether nobody gets in, because this edge is alone.
func (f *Fleet) shut() bool { return f != nil && f.refuseAlone && f.edges == 0 }

// limit returns how many connections this edge may have of a key under a cap.
func (f *Fleet) limit(m *shared, most int) int {
	without := free(most, f.edges)
	if m == nil {
		return without
	}
	if m.tight {
		without = 0
	}
	return min(most-(m.total-m.claim), max(m.claim, without))
}

// capped reports whether a key with so many connections may have no further one
// under a cap; 0: there is none. A refusal for want of a claim asks for it.
func (f *Fleet) capped(k key, m *shared, open, most int) bool {
	if f == nil || f.edges == 0 || most == 0 {
		return most > 0 && open >= most
	}
	if open < f.limit(m, most) {
		return false
	}
	if open >= most {
		return true
	}
	if m == nil {
		a, known := f.asked[k]
		if !known && len(f.asked) >= askedBound {
			return true
		}
		a.refused++
		a.most = max(a.most, most)
		f.asked[k] = a
		f.press()
		return true
	}
	m.refused++
	m.recent = max(m.recent, most)
	if !m.tight || m.total < most { // else there is nothing to be had
		f.press()
	}
	return true
}

// took notes that a key has got a connection: open, with it. bucket is how it
// was charged.
func (f *Fleet) took(k key, m *shared, open int, s *scope, paid payment, at int64) {
	if f == nil || f.edges == 0 {
		return
	}
	if m == nil {
		low := s.most > 0 && 2*open > free(s.most, f.edges)
		rate := paid.ok && s.cost > 0 && paid.full-at > s.burst/2
		a, known := f.asked[k]
		if !low && !rate && !known {
			return
		}
		if !known && len(f.asked) >= askedBound {
			return
		}
		a.most = max(a.most, s.most)
		if fold := s.fold(f); a.spent > 0 && paid.ok {
			a.spent += s.cost
		} else if rate {
			a.spent, a.fold = (paid.full-at)/fold, fold
		}
		f.asked[k] = a
		f.press()
		return
	}
	if paid.ok && s.cost > 0 {
		if m.rate {
			m.full, m.fold = paid.full, s.fold(f)
			m.spent += s.cost
		} else if paid.full-at > s.burst/2 {
			m.begin(paid.full, at, s.fold(f))
		}
		if paid.full-at > s.burst/2 {
			f.press()
		}
	}
	f.fill(m, open, s.most)
}

// fill asks for more of a key ahead of need.
func (f *Fleet) fill(m *shared, open, most int) {
	if most == 0 {
		return
	}
	m.recent = max(m.recent, most)
	if 4*open > 3*f.limit(m, most) && m.total < most {
		f.press()
	}
}

// begin moves a bucket into the fleet that is full again at the time full, by its
// row: all of that is this edge's, charged fold times.
func (m *shared) begin(full, at, fold int64) {
	m.rate, m.full, m.fold = true, full, fold
	m.spent = max(0, full-at) / fold
}

// bucket returns when the bucket of a row is full again.
func (m *shared) bucket(r *row) int64 {
	if m != nil && m.rate {
		return m.full
	}
	return r.full
}

// press asks for a beat, once until the next one.
func (f *Fleet) press() {
	if f.urgent {
		return
	}
	f.urgent = true
	select {
	case f.pressed <- struct{}{}:
	default:
	}
}

// fold is how many times a connection is charged to a bucket before the fleet
// knows of it.
func (s *scope) fold(f *Fleet) int64 {
	if f == nil || f.edges == 0 || s.cost == 0 {
		return 1
	}
	return int64(f.edges)
}

func (k key) shared() (s SharedKey) {
	binary.BigEndian.PutUint64(s[:8], k.hi)
	binary.BigEndian.PutUint64(s[8:], k.lo)
	return s
}

func (s SharedKey) key() key {
	return key{binary.BigEndian.Uint64(s[:8]), binary.BigEndian.Uint64(s[8:])}
}

package mailbox

import (
	"hash/maphash"
	"math"
	"net/netip"
	"time"

	"relayedge/admission"
	"relayedge/relaycore/wire"
)

// book is who waits for what, and all that is decided about it. Both stores keep
// one; their lock guards it. What it does not know is where payloads are.
type book struct {
	limits Limits
	caps   caps
	gone   func(seq uint64) // told of what has left, unless nil

	base    time.Time
	latest  time.Duration // the latest time that was given, since base
	seed    maphash.Seed
	boxes   table[wire.Identity, *box]
	ids     table[uint64, *item] // by recipient and id
	readers table[wire.Identity, *Reader]
	unread  table[uint64, int]          // of the items that no reader has, by recipient and sender
	shares  *admission.Shares[struct{}] // charged bytes, by source

	oldest, newest *item // in order of arrival, which is that of expiry
	seq            uint64
	count          Stats // its gauges are those of the book
}

// box is one recipient's mailbox. It exists while something is in it.
type box struct {
	recipient     wire.Identity
	first, last   *item
	messages      int
	steady        int
	strangers     int
	bytes         int64
	strangerBytes int64
}

// item is a message.
type item struct {
	box     *box // nil once it has left
	seq     uint64
	at      time.Duration // of arrival, since base
	sender  wire.Identity
	id      wire.MessageID
	source  uint64
	holding admission.Holding[struct{}]

	before, behind *item   // in its box
	older, newer   *item   // in the book
	same           *item   // with the same hash of recipient and id
	reader         *Reader // has it in flight
	pending        *batch  // nil once it is held
	payload        []byte  // Memory's
	size           int     // of the payload
	contact        bool
	read           bool // was handed out, so that it can be acknowledged
}

func (b *book) init(l Limits, now time.Time) {
	b.limits, b.caps = l, fixedCaps()
	b.base, b.seed = now, maphash.MakeSeed()
	b.shares = admission.NewShares[struct{}]()
}

// pass lets time get to now and returns it. Calls of several goroutines may
// come in another order than their times.
func (b *book) pass(now time.Time) time.Duration {
	b.latest = max(b.latest, now.Sub(b.base))
	for it := b.oldest; it != nil && it.at+b.limits.TTL <= b.latest; it = b.oldest {
		if it.pending != nil {
			break // its sender still waits for the answer
		}
		b.count.Expired++
		b.remove(it)
	}
	return b.latest
}

// due returns when something expires next.
func (b *book) due() time.Time {
	if b.oldest == nil {
		return time.Time{}
	}
	return b.base.Add(b.oldest.at + b.limits.TTL)
}

func (b *book) key(recipient *wire.Identity, id *wire.MessageID) uint64 {
	return maphash.Comparable(b.seed, [2][32]byte{*recipient, *id})
}

// between stands for a recipient and a sender of it.
func (b *book) between(recipient, sender *wire.Identity) uint64 {
	return maphash.Comparable(b.seed, [2]wire.Identity{*recipient, *sender})
}

// unreads counts it among those that no reader has, or with -1 no longer.
func (b *book) unreads(it *item, n int) {
	key := b.between(&it.box.recipient, &it.sender)
	if n += b.unread.rows[key]; n > 0 {
		b.unread.set(key, n)
	} else {
		b.unread.drop(key)
	}
}

func (b *book) sourceKey(p netip.Prefix) uint64 {
	return maphash.Comparable(b.seed, struct {
		addr [16]byte
		bits int
		four bool
	}{p.Addr().As16(), p.Bits(), p.Addr().Is4()})
}

// find returns the message that sender put under id.
func (b *book) find(m *Message) *item {
	for it := b.ids.rows[b.key(&m.Recipient, &m.ID)]; it != nil; it = it.same {
		if it.id == m.ID && it.sender == m.Sender && it.box.recipient == m.Recipient {
			return it
		}
	}
	return nil
}

// admit takes m in, unless it is there already (known) or refused.
func (b *book) admit(m *Message, now time.Time) (it *item, known bool, refused *Refusal) {
	at := b.pass(now)
	if it := b.find(m); it != nil {
		return it, true, nil
	}
	it = b.item(m, at)
	if limit, full := b.full(b.boxes.rows[m.Recipient], it); full {
		return nil, false, b.refuse(limit, b.boxes.rows[m.Recipient])
	}
	b.link(&m.Recipient, it)
	return it, false, nil
}

// item is m, in no box yet.
func (b *book) item(m *Message, at time.Duration) *item {
	source := m.Source
	if !b.limits.Sources {
		source = netip.Prefix{}
	}
	return &item{
		at: at, sender: m.Sender, id: m.ID, size: len(m.Payload), contact: m.Contact,
		source: b.sourceKey(source), holding: b.shares.Holding(source, struct{}{}),
	}
}

// refuses is admit without taking in.
func (b *book) refuses(m *Message, now time.Time) *Refusal {
	at := b.pass(now)
	if b.find(m) != nil {
		return nil
	}
	if limit, full := b.full(b.boxes.rows[m.Recipient], b.item(m, at)); full {
		return b.refuse(limit, b.boxes.rows[m.Recipient])
	}
	return nil
}

// full reports which limit keeps it from being taken into bx, which may be nil.
func (b *book) full(bx *box, it *item) (Limit, bool) {
	if bx == nil {
		bx = &box{}
	}
	l, charge := &b.limits, Charge(it.size)
	switch {
	case bx.messages >= b.caps.messages:
		return LimitRecipientMessages, true
	case it.size == SteadySize && bx.steady >= b.caps.steady:
		return LimitSteady, true
	case bx.bytes+charge > l.RecipientBytes:
		return LimitRecipientBytes, true
	}
	if !it.contact {
		if bx.strangers >= b.caps.messages/StrangersPart || bx.strangerBytes+charge > l.RecipientBytes/StrangersPart {
			return LimitStrangers, true
		}
		if l.Sources {
			messages, bytes := bx.ofStranger(it.source)
			if messages >= b.caps.messages/StrangerPart || bytes+charge > l.RecipientBytes/StrangerPart {
				return LimitStrangerSource, true
			}
		}
	}
	left := l.TotalBytes - b.shares.Held() - charge
	if left < 0 {
		return LimitTotalBytes, true
	}
	if l.Sources {
		holds := b.shares.Of(&it.holding).Amount
		if holds+charge > max(l.TotalBytes/SourcePart, l.RecipientBytes) || holds > left {
			return LimitSource, true
		}
	}
	return 0, false
}

// ofStranger returns what strangers of one source have in the box. A mailbox
// is short enough to be looked through.
func (bx *box) ofStranger(source uint64) (messages int, bytes int64) {
	for it := bx.first; it != nil; it = it.behind {
		if !it.contact && it.source == source {
			messages++
			bytes += Charge(it.size)
		}
	}
	return messages, bytes
}

// refuse counts a refusal. Room is there again, at the latest, when the oldest
// message expires: of the recipient, or of all.
func (b *book) refuse(limit Limit, bx *box) *Refusal {
	b.count.Refused[limit]++
	first := b.oldest
	if limit < LimitTotalBytes && bx != nil {
		first = bx.first
	}
	wait := retryMax
	if first != nil && limit != LimitStorage {
		wait = min(wait, first.at+b.limits.TTL-b.latest)
	}
	wait = time.Duration(math.Ceil(wait.Seconds())) * time.Second
	return &Refusal{Limit: limit, RetryAfter: max(wait, time.Second)}
}

// link gives it its place behind all others. Its seq may be given already.
func (b *book) link(recipient *wire.Identity, it *item) {
	bx := b.boxes.rows[*recipient]
	if bx == nil {
		bx = &box{recipient: *recipient}
		b.boxes.set(*recipient, bx)
	}
	if it.seq == 0 {
		it.seq = b.seq + 1
	}
	b.seq = it.seq
	it.box, it.before = bx, bx.last
	if bx.last != nil {
		bx.last.behind = it
	} else {
		bx.first = it
	}
	bx.last = it
	it.older = b.newest
	if b.newest != nil {
		b.newest.newer = it
	} else {
		b.oldest = it
	}
	b.newest = it
	key := b.key(recipient, &it.id)
	it.same = b.ids.rows[key]
	b.ids.set(key, it)
	bx.weigh(it, 1)
	b.unreads(it, 1)
	b.shares.Add(&it.holding, Charge(it.size))
	b.count.Messages++
}

// weigh counts it in, or with -1 out.
func (bx *box) weigh(it *item, n int) {
	bytes := int64(n) * Charge(it.size)
	bx.messages += n
	bx.bytes += bytes
	if it.size == SteadySize {
		bx.steady += n
	}
	if !it.contact {
		bx.strangers += n
		bx.strangerBytes += bytes
	}
}

// remove takes it out of everything, and tells gone of it.
func (b *book) remove(it *item) {
	b.unlink(it)
	if b.gone != nil {
		b.gone(it.seq)
	}
}

func (b *book) unlink(it *item) {
	bx := it.box
	if it.before != nil {
		it.before.behind = it.behind
	} else {
		bx.first = it.behind
	}
	if it.behind != nil {
		it.behind.before = it.before
	} else {
		bx.last = it.before
	}
	if it.older != nil {
		it.older.newer = it.newer
	} else {
		b.oldest = it.newer
	}
	if it.newer != nil {
		it.newer.older = it.older
	} else {
		b.newest = it.older
	}
	if it.reader != nil {
		b.land(it)
	}
	b.unreads(it, -1)
	b.unname(it)
	bx.weigh(it, -1)
	b.shares.Drop(&it.holding)
	b.count.Messages--
	if bx.messages == 0 {
		b.boxes.drop(bx.recipient)
	}
	// Whoever still has it in hand sees that it has left, and keeps no other alive.
	it.box, it.before, it.behind, it.older, it.newer, it.same, it.payload = nil, nil, nil, nil, nil, nil, nil
}

// unname takes it out of the index of ids.
func (b *book) unname(it *item) {
	key := b.key(&it.box.recipient, &it.id)
	head := b.ids.rows[key]
	if head == it {
		if it.same == nil {
			b.ids.drop(key)
		} else {
			b.ids.set(key, it.same)
		}
		return
	}
	for head.same != it {
		head = head.same
	}
	head.same = it.same
}

// ack forgets what recipient has read under these ids.
func (b *book) ack(recipient *wire.Identity, ids []wire.MessageID, now time.Time) (n int) {
	b.pass(now)
	for i := range ids {
		for it := b.ids.rows[b.key(recipient, &ids[i])]; it != nil; {
			next := it.same
			// An id that two senders use must not take away what was not read yet.
			if it.read && it.id == ids[i] && it.box.recipient == *recipient {
				b.remove(it)
				n++
			}
			it = next
		}
	}
	b.count.Acked += uint64(n)
	return n
}

// behind returns what is held for recipient behind a place, in order. It ends
// before what is on its way to the disk, so that nothing is overtaken.
func (b *book) behind(recipient *wire.Identity, after uint64, n, size int, now time.Time) (portion []*item) {
	b.pass(now)
	bx := b.boxes.rows[*recipient]
	if bx == nil {
		return nil
	}
	for it := bx.first; it != nil && it.pending == nil && len(portion) < n; it = it.behind {
		if it.seq <= after {
			continue
		}
		if size -= it.size; size < 0 && len(portion) > 0 {
			break
		}
		it.read = true
		portion = append(portion, it)
	}
	return portion
}

// waits looks at a count, since it is asked for every message that goes past the
// mailbox. Two pairs with the same hash can only make it say yes for no cause.
func (b *book) waits(recipient, sender *wire.Identity, now time.Time) bool {
	b.pass(now)
	return b.unread.rows[b.between(recipient, sender)] > 0
}

func (b *book) stats(now time.Time) Stats {
	b.pass(now)
	s := b.count
	s.Bytes, s.Recipients, s.Sources = b.shares.Held(), len(b.boxes.rows), b.shares.Sources()
	return s
}

// clear forgets everything without telling gone: the store is closed.
func (b *book) clear() {
	b.gone = nil
	for b.oldest != nil {
		b.unlink(b.oldest)
	}
}

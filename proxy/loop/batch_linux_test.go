package loop

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// handTurned is a loop whose turns a test takes itself.
type handTurned struct {
	*testing.T
	*Loop
}

// newHandTurned returns a loop that makes so many calls of a turn together.
func newHandTurned(t *testing.T, together int) handTurned {
	t.Helper()
	leavesNone(t)
	l, err := Open(together)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if l.batch != nil {
			l.batch.close()
		}
		l.park.close()
	})
	if together > 0 && l.batch == nil {
		_, err := openRing(eventBatch)
		t.Skip("the kernel makes no calls together:", err)
	}
	return handTurned{t, l}
}

// handTurnedLoops runs f where calls are made together, and where each is made alone.
func handTurnedLoops(t *testing.T, f func(t handTurned)) {
	for _, together := range []int{1, 3, 0} {
		t.Run(fmt.Sprint(together), func(t *testing.T) { f(newHandTurned(t, together)) })
	}
}

// socket returns a connection that m has, and its peer.
func (t handTurned) socket(m Handler) (*Conn, int) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	c := &Conn{loop: t.Loop, fd: fds[0], unix: true}
	t.Cleanup(func() {
		c.Close()
		unix.Close(fds[1])
	})
	if err := t.Hand(c, m); err != nil {
		t.Fatal(err)
	}
	return c, fds[1]
}

// tellAll takes a turn in which all are readable.
func (t handTurned) tellAll(conns ...*Conn) {
	events := make([]occurrence, len(conns))
	for i, c := range conns {
		events[i] = occurrence{conn: c, event: Event{Readable: true}}
	}
	t.turn(events)
}

// say has a peer send.
func (t handTurned) say(peer int, b []byte) {
	t.Helper()
	if n, err := unix.Write(peer, b); n != len(b) || err != nil {
		t.Fatalf("a peer has sent %d of %d bytes: %v", n, len(b), err)
	}
}

// heard is what a peer has got.
func (t handTurned) heard(peer int) []byte {
	t.Helper()
	var all []byte
	p := make([]byte, 64<<10)
	for {
		n, err := unix.Read(peer, p)
		if err == unix.EAGAIN || n == 0 {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, p[:n]...)
	}
}

// testMover notes what it is told.
type testMover struct {
	t       handTurned
	holds   bool // it does not read
	got     []byte
	end     error // the first
	wrote   []result
	ready   func(c Stream)
	written func(c Stream)
	causes  []any
}

type result struct {
	n    int
	rest string
	err  error
}

func (m *testMover) Reads(Stream) bool { return !m.holds }

func (m *testMover) Ready(c Stream, e Event) {
	if e.Readable && !m.holds {
		m.read(c)
	}
	if m.ready != nil {
		m.ready(c)
	}
}

func (m *testMover) read(c Stream) {
	n, err := c.TryRead(m.t.In)
	m.got = append(m.got, m.t.In[:n]...)
	if m.end == nil && err != ErrWouldBlock {
		m.end = err
	}
}

func (m *testMover) Wrote(c Stream, n int, rest []byte, err error) {
	m.wrote = append(m.wrote, result{n, string(rest), err})
	if m.written != nil {
		m.written(c)
	}
}

func (m *testMover) Panicked(cause any) { m.causes = append(m.causes, cause) }

// crowd is so many connections of a mover each.
func (t handTurned) crowd(n int) (movers []*testMover, conns []*Conn, peers []int) {
	for range n {
		m := &testMover{t: t}
		c, peer := t.socket(m)
		movers, conns, peers = append(movers, m), append(conns, c), append(peers, peer)
	}
	return movers, conns, peers
}

// Reads, and writes, are made together from so many on as it is worth, and those
// that bring or take much never.
func TestWhatIsMadeTogether(t *testing.T) {
	l := newHandTurned(t, 3)
	movers, conns, peers := l.crowd(4)
	made := func(told int, read, written int) (calls uint32) {
		for i, m := range movers {
			l.say(peers[i], make([]byte, read))
			m.ready = func(c Stream) { l.Write(c, make([]byte, written), m) }
		}
		before := l.batch.(*batch).ring.sent
		l.tellAll(conns[:told]...)
		calls = l.batch.(*batch).ring.sent - before
		for i, m := range movers {
			m.read(conns[i])
			l.heard(peers[i])
		}
		return calls
	}
	for _, row := range []struct {
		told, read, written int
		calls               uint32
	}{
		{2, 1, 1, 0},
		{3, 1, 1, 6},
		{4, 1, 1, 8},
		{4, 1, aheadBytes, 8},
		{4, 1, aheadBytes + 1, 4},
		{4, aheadBytes + 1, 1, 8}, // it is likely to be more the next time
		{4, aheadBytes + 1, 1, 4},
		{4, 1, 1, 4}, // it was little
		{4, 1, 1, 8},
	} {
		if got := made(row.told, row.read, row.written); got != row.calls {
			t.Errorf("%d connections that bring %d bytes and take %d: %d calls together, want %d", row.told, row.read, row.written, got, row.calls)
		}
	}
}

// What came for many is read whole, however much it is, and ends as it ends.
func TestReadsOfATurn(t *testing.T) {
	sizes := []int{1, 100, aheadBytes - 1, aheadBytes, aheadBytes + 1, 3 * aheadBytes, BufferBytes}
	handTurnedLoops(t, func(t handTurned) {
		movers, conns, peers := t.crowd(len(sizes))
		for turn := range 3 {
			for i, size := range sizes {
				t.say(peers[i], bytes.Repeat([]byte{byte('a' + turn)}, size))
			}
			t.tellAll(conns...)
			for i, size := range sizes {
				if want := bytes.Repeat([]byte{byte('a' + turn)}, size); !bytes.Equal(movers[i].got, want) {
					t.Errorf("turn %d: %d bytes came of %d", turn, len(movers[i].got), size)
				}
				movers[i].got = nil
			}
		}
		t.tellAll(conns...) // nothing is there
		for i := range conns {
			if movers[i].got != nil || movers[i].end != nil {
				t.Errorf("of nothing came %q, %v", movers[i].got, movers[i].end)
			}
			unix.Shutdown(peers[i], unix.SHUT_WR)
		}
		t.tellAll(conns...)
		for i := range conns {
			if movers[i].end != io.EOF {
				t.Errorf("the end is %v", movers[i].end)
			}
		}
	})
}

// An error of a connection is told once it was found, behind the bytes before it.
func TestErrorsOfReadsOfATurn(t *testing.T) {
	handTurnedLoops(t, func(t handTurned) {
		for _, size := range []int{0, aheadBytes} {
			movers, conns, peers := t.crowd(4)
			for i := range conns {
				t.say(conns[i].fd, []byte("unread: the peer's end is a reset"))
				if size > 0 {
					t.say(peers[i], make([]byte, size))
				}
				unix.Close(peers[i])
				peers[i] = -1
			}
			for range 3 {
				t.tellAll(conns...)
			}
			for i, m := range movers {
				if len(m.got) != size || !errors.Is(m.end, syscall.ECONNRESET) {
					t.Errorf("%d bytes came of %d, and %v", len(m.got), size, m.end)
				}
				if _, err := conns[i].TryRead(t.In); err != io.EOF {
					t.Errorf("behind the error comes %v", err)
				}
				conns[i].Close()
			}
		}
	})
}

// Who is not read when he is told may read later: nothing is lost, and nothing
// is out of order.
func TestWhatWasReadAheadStays(t *testing.T) {
	handTurnedLoops(t, func(t handTurned) {
		movers, conns, peers := t.crowd(8)
		for i, m := range movers {
			t.say(peers[i], []byte("first"))
			m.ready = func(Stream) {}
		}
		// The first has all others hold before they are told.
		movers[0].ready = func(Stream) {
			for _, m := range movers[1:] {
				m.holds = true
			}
		}
		t.tellAll(conns...)
		movers[0].ready = func(Stream) {}
		for i, m := range movers {
			t.say(peers[i], []byte(" second"))
			unix.Shutdown(peers[i], unix.SHUT_WR)
			if i > 0 && m.got != nil {
				t.Fatalf("one that holds has read %q", m.got)
			}
		}
		t.tellAll(conns...)
		for i, m := range movers {
			m.holds = false
			for range 4 {
				m.read(conns[i])
			}
			if string(m.got) != "first second" || m.end != io.EOF {
				t.Errorf("%q came, %v", m.got, m.end)
			}
		}
	})
}

// A connection that another handler closes in the same turn is told nothing, and
// neither is one that another loop has got.
func TestClosedAmidATurn(t *testing.T) {
	handTurnedLoops(t, func(t handTurned) {
		movers, conns, peers := t.crowd(6)
		for i := range conns {
			t.say(peers[i], []byte("hello"))
		}
		movers[0].ready = func(Stream) {
			for i, c := range conns[1:] {
				t.Write(c, []byte("last"), movers[1+i])
				c.Close()
			}
		}
		t.tellAll(conns...)
		if string(movers[0].got) != "hello" {
			t.Errorf("the first has read %q", movers[0].got)
		}
		for i, m := range movers[1:] {
			if m.got != nil {
				t.Errorf("closed connection %d was told", i)
			}
			if len(m.wrote) != 1 {
				t.Errorf("closed connection %d: %v was told of one write", i, m.wrote)
			}
			if _, err := conns[1+i].TryRead(t.In); err == nil {
				t.Errorf("closed connection %d is read", i)
			}
		}
	})
}

// What is written in a turn has left when the turn is over, in its order, and the
// mover was told of each.
func TestWritesOfATurn(t *testing.T) {
	handTurnedLoops(t, func(t handTurned) {
		movers, conns, peers := t.crowd(10)
		parts := [][]byte{[]byte("one"), bytes.Repeat([]byte("2"), aheadBytes), []byte("three"), bytes.Repeat([]byte("4"), 3*aheadBytes), []byte("five")}
		for i, m := range movers {
			t.say(peers[i], []byte("x"))
			m.ready = func(c Stream) {
				for _, p := range parts {
					own := bytes.Clone(p)
					t.Write(c, own, m)
					clear(own) // it is the writer's again
				}
			}
		}
		t.tellAll(conns...)
		for i, m := range movers {
			if got := t.heard(peers[i]); !bytes.Equal(got, slices.Concat(parts...)) {
				t.Errorf("%d bytes were heard, want %d as they were written", len(got), len(slices.Concat(parts...)))
			}
			want := make([]result, len(parts))
			for k, p := range parts {
				want[k].n = len(p)
			}
			if !slices.Equal(m.wrote, want) {
				t.Errorf("told were %v, want %v", m.wrote, want)
			}
		}
	})
}

// More is written in one turn than is kept at once.
func TestManyWritesOfATurn(t *testing.T) {
	handTurnedLoops(t, func(t handTurned) {
		movers, conns, peers := t.crowd(eventBatch + 20)
		message := bytes.Repeat([]byte("m"), aheadBytes)
		t.say(peers[0], []byte("x"))
		movers[0].ready = func(Stream) {
			for i, c := range conns {
				t.Write(c, message[i%3:], movers[i])
			}
		}
		t.tellAll(conns[:3]...)
		for i, peer := range peers {
			if got := t.heard(peer); !bytes.Equal(got, message[i%3:]) {
				t.Errorf("connection %d: %d bytes were heard", i, len(got))
			}
		}
	})
}

// What a socket does not take is handed back, and so is all that is written
// behind it: each byte is either heard or handed back, and in order.
func TestWritesThatDoNotFit(t *testing.T) {
	handTurnedLoops(t, func(t handTurned) {
		movers, conns, peers := t.crowd(5)
		var rest [5]string
		var all [5][]byte
		for i, m := range movers {
			unix.SetsockoptInt(conns[i].fd, unix.SOL_SOCKET, unix.SO_SNDBUF, 4608)
			t.say(peers[i], []byte("x"))
			m.ready = func(c Stream) {
				for k := range 40 {
					p := bytes.Repeat([]byte{byte('0' + k)}, 1000+i)
					all[i] = append(all[i], p...)
					t.Write(c, p, m)
				}
			}
		}
		t.tellAll(conns...)
		for i, m := range movers {
			taken := 0
			for k, r := range m.wrote {
				if r.err != nil {
					t.Errorf("write %d: %v", k, r.err)
				}
				if rest[i] != "" && r.n > 0 {
					t.Errorf("write %d has left %d bytes before those that were handed back", k, r.n)
				}
				taken += r.n
				rest[i] += r.rest
			}
			if rest[i] == "" {
				t.Error("the socket has taken all: this tests nothing")
			}
			got := t.heard(peers[i])
			if len(got) != taken || string(got)+rest[i] != string(all[i]) {
				t.Errorf("heard %d, told %d, handed back %d of %d bytes", len(got), taken, len(rest[i]), len(all[i]))
			}
		}
	})
}

// A peer that is gone is told by Wrote.
func TestWritesToNobody(t *testing.T) {
	handTurnedLoops(t, func(t handTurned) {
		movers, conns, peers := t.crowd(4)
		for i, m := range movers {
			t.say(peers[i], []byte("x"))
			unix.Close(peers[i])
			peers[i] = -1
			m.ready = func(c Stream) { t.Write(c, []byte("anybody?"), m) }
		}
		t.tellAll(conns...)
		for _, m := range movers {
			if len(m.wrote) != 1 || !errors.Is(m.wrote[0].err, syscall.EPIPE) || m.wrote[0].n != 0 {
				t.Errorf("told were %v", m.wrote)
			}
		}
	})
}

// Settle has what was written leave, before the turn is over.
func TestSettle(t *testing.T) {
	handTurnedLoops(t, func(t handTurned) {
		movers, conns, peers := t.crowd(4)
		for i, m := range movers {
			t.say(peers[i], []byte("x"))
			m.ready = func(c Stream) {
				t.Write(c, []byte("last words"), m)
				t.Settle(c)
				if len(m.wrote) != 1 || string(t.heard(peers[i])) != "last words" {
					t.Errorf("behind Settle: told were %v", m.wrote)
				}
				t.Settle(c)
				c.CloseWrite()
			}
		}
		t.tellAll(conns...)
		for _, m := range movers {
			if len(m.wrote) != 1 {
				t.Errorf("told were %v", m.wrote)
			}
		}
	})
}

// What a mover writes when it is told of a write leaves in the same turn, and
// other connections' results wait for no one.
func TestWritesWhenTold(t *testing.T) {
	handTurnedLoops(t, func(t handTurned) {
		movers, conns, peers := t.crowd(6)
		for i, m := range movers {
			next := (i + 1) % len(movers)
			t.say(peers[i], []byte("x"))
			m.ready = func(c Stream) { t.Write(c, []byte("1"), m) }
			m.written = func(c Stream) {
				if len(m.wrote) == 1 {
					t.Write(c, []byte("2"), m)
					t.Settle(conns[next])
				}
			}
		}
		t.tellAll(conns...)
		for i, m := range movers {
			if got := string(t.heard(peers[i])); got != "12" || len(m.wrote) != 2 {
				t.Errorf("heard %q, told %v", got, m.wrote)
			}
		}
	})
}

// A mover that panics when it is told of a write is told so, and no other.
func TestPanicWhenTold(t *testing.T) {
	handTurnedLoops(t, func(t handTurned) {
		movers, conns, peers := t.crowd(6)
		for i, m := range movers {
			t.say(peers[i], []byte("x"))
			m.ready = func(c Stream) { t.Write(c, []byte("1"), m) }
		}
		movers[2].written = func(Stream) { panic("of one") }
		t.tellAll(conns...)
		for i, m := range movers {
			if got := string(t.heard(peers[i])); got != "1" {
				t.Errorf("heard %q", got)
			}
			if want := []any{"of one"}; i == 2 && !slices.Equal(m.causes, want) || i != 2 && m.causes != nil {
				t.Errorf("mover %d: %v", i, m.causes)
			}
		}
	})
}

// A ring that the kernel takes no more calls from is used no more: what it was to
// do is done without it.
func TestRingThatFails(t *testing.T) {
	l := newHandTurned(t, 1)
	movers, conns, peers := l.crowd(6)
	for i, m := range movers {
		l.say(peers[i], []byte("x"))
		m.ready = func(c Stream) { l.Write(c, []byte("1"), m) }
	}
	b := l.batch.(*batch)
	unix.Dup3(peers[0], b.ring.fd, unix.O_CLOEXEC) // no ring any longer
	movers[0].ready = func(c Stream) { l.Write(c, []byte("1"), movers[0]) }
	for range 2 {
		l.tellAll(conns...)
		for i, m := range movers {
			if got := string(l.heard(peers[i])); got != "1" || string(m.got) != "x" {
				t.Errorf("heard %q, read %q", got, m.got)
			}
			m.got = nil
			l.say(peers[i], []byte("x"))
		}
	}
	if b.begin([]occurrence{{}}); b.on {
		t.Error("a ring that has failed is tried again")
	}
}

// The ring tells what each call has returned.
func TestRing(t *testing.T) {
	leavesNone(t)
	r, err := openRing(8)
	if err != nil {
		t.Skip("the kernel makes no calls together:", err)
	}
	defer r.close()
	memory, err := mapMemory(4096)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(memory)
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0) // which would block
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pair[0])
	for round := range 10 { // more than the ring has places
		copy(memory, "hello")
		r.add(opSend, pair[0], memory[:5], 0)
		r.add(opRecv, pair[1], memory[10:13], 1)
		r.add(opRecv, pair[1], memory[20:30], 2)
		r.add(opRecv, pair[1], memory[30:40], 3)
		r.add(opRecv, -1, memory[40:50], 4)
		results := make([]int32, 6)
		if err := r.make(results); err != nil {
			t.Fatal(err)
		}
		want := []int32{5, 3, 2, -int32(syscall.EAGAIN), -int32(syscall.EBADF), notMade}
		if !slices.Equal(results, want) || string(memory[10:13])+string(memory[20:22]) != "hello" {
			t.Fatalf("round %d: %v, want %v; got %q", round, results, want, memory[10:22])
		}
	}
	unix.Close(pair[1])
	r.add(opSend, pair[0], memory[:5], 0)
	r.add(opRecv, pair[0], memory[:5], 1)
	results := make([]int32, 2)
	if err := r.make(results); err != nil || !slices.Equal(results, []int32{-int32(syscall.EPIPE), 0}) {
		t.Errorf("of a peer that is gone: %v, %v", results, err)
	}
}

// A turn of messages there and back allocates nothing.
func TestTurnOfManyAllocatesNothing(t *testing.T) {
	handTurnedLoops(t, func(t handTurned) {
		movers, conns, peers := t.crowd(32)
		message := bytes.Repeat([]byte("m"), 512)
		for _, m := range movers {
			m.got, m.wrote = make([]byte, 0, 1<<20), make([]result, 0, 1<<10)
			m.ready = func(c Stream) { t.Write(c, message, m) }
		}
		p := make([]byte, 4096)
		events := make([]occurrence, len(conns))
		for i, c := range conns {
			events[i] = occurrence{conn: c, event: Event{Readable: true}}
		}
		got := testing.AllocsPerRun(50, func() {
			for _, peer := range peers {
				unix.Write(peer, message)
			}
			t.turn(events)
			for _, peer := range peers {
				if n, _ := unix.Read(peer, p); n != len(message) {
					t.Fatalf("%d bytes were heard", n)
				}
			}
		})
		if got != 0 {
			t.Errorf("%v allocations", got)
		}
	})
}

package succession

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"pgregory.net/rapid"

	"relayedge/admission"
	"relayedge/internal/handover"
)

// member is a process of a history: what a real one has of this package.
type member struct {
	gate      *admission.Gate
	successor *Successor
	elder     *Elder
	resumed   chan struct{}
	leases    []*admission.Lease
	unnamed   []*admission.Lease
}

// patience is how long something is waited for that comes at once.
const patience = 3 * time.Second

const (
	capAll  = 12
	capHost = 3
	capSite = 5
)

func limits() admission.Limits {
	l := admission.DefaultLimits()
	l.MaxConnections, l.MaxConnectionsPerIP, l.MaxConnectionsPerIPv648 = capAll, capHost, capSite
	l.ConnectionRatePerIP, l.ConnectionRatePerIPv648 = 0, 0
	return l
}

func newMember(gate *admission.Gate) *member {
	m := &member{gate: gate, successor: NewSuccessor(gate, Requests{}), resumed: make(chan struct{}, 8)}
	m.elder = NewElder(gate, m.successor, func() { m.resumed <- struct{}{} }, func() {})
	return m
}

func fatal(t rapid.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// handsOver has a successor take the place of m, as the commands do it.
func (m *member) handsOver(t rapid.TB) *member {
	gate, err := admission.NewSuccessor(limits(), m.gate.Secret())
	fatal(t, err)
	next := newMember(gate)
	line, theirs, err := handover.Pair()
	fatal(t, err)
	nextLine, err := handover.LineOf(theirs)
	fatal(t, err)
	must := next.successor.Follow(nextLine, nil)
	heir := m.elder.Tell(line, nil)
	select {
	case <-heir.Told():
	case <-time.After(patience):
		t.Fatal("the heir is not told")
	}
	ends, err := m.successor.Introduce()
	fatal(t, err)
	for _, f := range ends {
		l, err := handover.LineOf(f)
		fatal(t, err)
		next.successor.Follow(l, nil)
	}
	if !m.elder.Retire() {
		t.Fatal("the heir is gone")
	}
	fatal(t, next.successor.Await(must, patience))
	next.successor.Open()
	return next
}

// dies ends a process: all its descriptors are closed.
func (m *member) dies() {
	m.elder.mu.Lock()
	heirs := m.elder.heirs
	m.elder.mu.Unlock()
	// These first: it must not tell older ones that it takes over, as no dead process does.
	for _, f := range m.successor.Elders() {
		f.line.Close()
		<-f.gone
	}
	for _, h := range heirs {
		h.line.Close()
	}
}

// history is a service of several processes, and how many connections each host and
// site really has.
type history struct {
	t       rapid.TB
	members []*member // the oldest first; the last one decides
	of      map[*admission.Lease]netip.Addr
}

var hosts = []netip.Addr{
	netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2"),
	netip.MustParseAddr("2001:db8:1:1::1"), netip.MustParseAddr("2001:db8:1:2::1"), netip.MustParseAddr("2001:db8:1:3::1"),
}

func (h *history) decides() *member { return h.members[len(h.members)-1] }

// open counts the connections of a host's or a site's, and of all for the zero prefix.
func (h *history) open(key netip.Prefix) (n int) {
	for _, m := range h.members {
		for _, l := range append(m.leases[:len(m.leases):len(m.leases)], m.unnamed...) {
			host, site := admission.Keys(h.of[l], nil)
			if !key.IsValid() || host == key || site == key {
				n++
			}
		}
	}
	return n
}

// reason is why a connection must be refused; all: it has no global slot yet.
func (h *history) reason(addr netip.Addr, all bool) admission.Reason {
	host, site := admission.Keys(addr, nil)
	switch {
	case all && h.open(netip.Prefix{}) >= capAll:
		return admission.MaxConnections
	case host.IsValid() && h.open(host) >= capHost:
		return admission.PerIPCap
	case site.IsValid() && h.open(site) >= capSite:
		return admission.PerPrefixCap
	}
	return ""
}

// settles waits until whoever decides counts what there is.
func (h *history) settles() {
	deadline := time.Now().Add(patience)
	want := h.open(netip.Prefix{})
	for {
		wrong := ""
		if got := h.decides().gate.Stats(time.Now()).Connections; got != want {
			wrong = fmt.Sprintf("%d connections are counted, there are %d", got, want)
		}
		if wrong == "" {
			rows := map[netip.Prefix]bool{}
			hosts := 0
			for _, addr := range h.of {
				host, _ := admission.Keys(addr, nil)
				if host.IsValid() && !rows[host] && h.open(host) > 0 {
					rows[host] = true
					hosts++
				}
			}
			if got := h.decides().gate.Stats(time.Now()).Hosts; got != hosts {
				wrong = fmt.Sprintf("%d hosts are counted, there are %d", got, hosts)
			}
		}
		if wrong == "" {
			return
		}
		if time.Now().After(deadline) {
			h.t.Fatal(wrong)
		}
		time.Sleep(100 * time.Microsecond) // the other side is another goroutine's
	}
}

func (h *history) admit(addr netip.Addr) {
	m := h.decides()
	want := h.reason(addr, true)
	l, got := m.gate.Admit(addr, time.Now())
	if got != want {
		h.t.Fatalf("%v: %q, want %q", addr, got, want)
	}
	if l == nil {
		return
	}
	h.of[l] = addr
	if addr.IsValid() {
		m.leases = append(m.leases, l)
	} else {
		m.unnamed = append(m.unnamed, l)
	}
}

// name names the first unnamed connection of a process, which may be an old one.
func (h *history) name(m *member, addr netip.Addr) {
	if len(m.unnamed) == 0 {
		return
	}
	l := m.unnamed[0]
	want := h.reason(addr, false)
	if got := l.Name(addr, time.Now()); got != want {
		h.t.Fatalf("%v is named: %q, want %q", addr, got, want)
	}
	m.unnamed = m.unnamed[1:]
	if want != "" {
		l.Release()
		delete(h.of, l)
		return
	}
	h.of[l] = addr
	m.leases = append(m.leases, l)
}

func (h *history) release(m *member, i int) {
	if len(m.leases) == 0 {
		return
	}
	i %= len(m.leases)
	l := m.leases[i]
	l.Release()
	delete(h.of, l)
	m.leases = append(m.leases[:i:i], m.leases[i+1:]...)
}

func (h *history) kill(i int) {
	m := h.members[i]
	last := i == len(h.members)-1
	h.members = append(h.members[:i:i], h.members[i+1:]...)
	for _, l := range append(m.leases, m.unnamed...) {
		delete(h.of, l)
	}
	m.dies()
	if !last {
		return
	}
	select {
	case <-h.decides().resumed:
	case <-time.After(patience):
		h.t.Fatal("the next newest does not take over")
	}
}

// Whatever is admitted, named and released, and whichever process is killed, the
// newest that lives counts exactly what all of them hold.
func TestExactOverAnyHistory(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		gate, err := admission.NewGate(limits())
		fatal(t, err)
		h := &history{t: t, members: []*member{newMember(gate)}, of: make(map[*admission.Lease]netip.Addr)}
		defer func() {
			for _, m := range h.members {
				m.dies()
			}
		}()
		host := rapid.SampledFrom(hosts)
		pick := func(label string) int { return rapid.IntRange(0, len(h.members)-1).Draw(t, label) }
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			switch rapid.IntRange(0, 12).Draw(t, "step") {
			case 0, 1, 2, 3:
				h.admit(host.Draw(t, "host"))
			case 4, 5:
				h.admit(netip.Addr{})
			case 6, 7:
				h.name(h.members[pick("of")], host.Draw(t, "named"))
			case 8, 9:
				h.release(h.members[pick("releases")], rapid.IntRange(0, 20).Draw(t, "which"))
			case 10, 11:
				if len(h.members) < 4 {
					h.members = append(h.members, h.decides().handsOver(t))
				}
			case 12:
				if len(h.members) > 1 {
					h.kill(pick("dies"))
				}
			}
			h.settles()
		}
	})
}

package relaycore

import "relayedge/relaycore/wire"

// empty checks that the directory has nothing of those who have left but what it
// is to keep, and that what it keeps agrees with itself.
func (w *world) empty() {
	w.t.Helper()
	d := w.s.dir
	if st := d.stats(); st.connected != 0 || st.pending != 0 || st.circuits != 0 {
		w.t.Errorf("the directory still holds %+v", st)
	}
	if n := d.pending.lines[0].n + d.pending.lines[1].n + int(d.pending.shares.Held()+d.pending.modeShares[0].Held()+d.pending.modeShares[1].Held()); n != 0 {
		w.t.Errorf("the lines and shares of requests still hold %d", n)
	}
	c := &d.circuits
	if n := len(c.byPair) + len(c.byToken) + len(c.byIdentity) + int(c.shares.Held()) + c.fading.n; n != 0 {
		w.t.Errorf("the tables and shares of circuits still hold %d", n)
	}
	w.kept()
}

// kept checks that the stores of knocks, askers and identities agree with themselves.
func (w *world) kept() {
	w.t.Helper()
	d := w.s.dir
	atDoors := 0
	for _, of := range d.knocks.targets {
		if atDoors += of.line.n; of.line.n != int(of.shares.Held()) || of.line.n == 0 {
			w.t.Errorf("%d knocks wait at a door, whose shares are %d", of.line.n, of.shares.Held())
		}
	}
	if k := &d.knocks; atDoors != len(k.byPair) || k.line.n != len(k.byPair) || k.shares.Held() != int64(wire.AskSize*len(k.byPair)) {
		w.t.Errorf("%d knocks: %d at doors, %d in line, shares of %d bytes", len(k.byPair), atDoors, k.line.n, k.shares.Held())
	}
	if a := &d.askers; a.line.n != len(a.byIdentity) || int(a.shares.Held()) != len(a.byIdentity) {
		w.t.Errorf("%d askers: %d in line, shares of %d", len(a.byIdentity), a.line.n, a.shares.Held())
	}
	if c := &d.contacts; c.line.n != len(c.byPair) || int(c.shares.Held()) != 2*len(c.byPair) {
		w.t.Errorf("%d contacts: %d in line, shares of %d", len(c.byPair), c.line.n, c.shares.Held())
	}
	i := &d.identities
	size, connected := 0, 0
	for _, r := range i.byIdentity {
		size += cap(r.bundle) + recordOverhead
		if r.connected {
			connected++
		}
	}
	if away := len(i.byIdentity) - connected; i.line.n != away || int(i.away.Held()) != away || int(i.places.Held()) != len(i.byIdentity) || int(i.bytes.Held()) != size {
		w.t.Errorf("%d identities, %d away: %d in line, shares of %d, %d and %d", len(i.byIdentity), away, i.line.n, i.away.Held(), i.places.Held(), i.bytes.Held())
	}
}

package proxy

import (
	"crypto/tls"
	"net"
	"time"

	"relayedge/admission"
	"relayedge/internal/clienthello"
	"relayedge/internal/proxyheader"
	"relayedge/proxy/certs"
)

const (
	// lanePlaces is how many connections the lane takes beyond the caps.
	lanePlaces = 16
	// laneTime is how long each of them may take, in all.
	laneTime = 5 * time.Second
	// laneHelloBytes is more than a validation's hello takes up.
	laneHelloBytes = 16 << 10
)

// lane lets a CA's validation in while the caps are full: without it, whoever
// fills them keeps the edge from its certificates. A connection that a cap
// refuses gets a place in it while a validation may come, from whatever address;
// what turns out to be no validation is refused for the reason that the cap gave,
// and as the cap would have. Nothing in it reaches a relay, and it takes nothing
// else: no slot, no room, no place of max_handshakes.
type lane struct {
	open   func() bool // whether a validation may come; nil: it never does
	places *admission.Handshakes
}

// newLane takes an eighth of a small room: what it admits comes out of the
// descriptors that are kept from connections.
func newLane(open func() bool, room int) lane {
	most := lanePlaces
	if room > 0 {
		most = max(min(most, room/8), 1)
	}
	return lane{open: open, places: admission.NewHandshakes(most)}
}

// takes reports whether what is refused for r may yet be let into the lane. A
// deny list and a peer that may not speak for others are no caps.
func (n *lane) takes(t *terms, r Reason) bool {
	switch r {
	case admission.MaxConnections, admission.PerIPCap, admission.PerPrefixCap, admission.ConnectionRate, Descriptors, HandshakeCap:
		return t.tls != nil && n.open != nil && n.open()
	}
	return false
}

// turnAway refuses a connection at accept, unless the lane takes it, which it
// reports.
func (l *listener) turnAway(terms *terms, conn net.Conn, r Reason, now time.Time) bool {
	if l.server.lane.takes(terms, r) {
		s := newSession(l, terms, nil, conn, now)
		if place, ok := s.enterLane(now, r); ok {
			s.lane = true
			l.open.Add(1)
			l.server.remember(s)
			go serveLane(s, place, r)
			return true
		}
		s.cancel()
	}
	l.server.stats.end(r)
	terms.refuse(conn)
	return false
}

// turnedAway is turnAway for a session that was let in so far. In the lane it
// holds nothing of what it was let in by. It returns how the session ends.
func (s *session) turnedAway(r Reason) Reason {
	if now := time.Now(); s.server.lane.takes(s.terms, r) {
		if place, ok := s.enterLane(now, r); ok {
			s.lane = true
			s.count(false)
			s.lease.Release()
			s.server.room.give()
			return s.validate(place, r, now.Add(laneTime))
		}
	}
	s.terms.partWith(s.conn)
	return r
}

// enterLane takes a place in the lane. Who makes way when it is full is decided
// as for handshakes: the heaviest source first.
func (s *session) enterLane(now time.Time, r Reason) (*admission.Place, bool) {
	source := admission.Source(s.client.Addr(), s.terms.embedded)
	return s.server.lane.places.Enter(source, now, func() { s.stop(r) })
}

// serveLane carries a session that was refused at accept, whatever the engine:
// there are few of them.
func serveLane(s *session, place *admission.Place, r Reason) {
	defer s.finish()
	until := s.accepted.Add(laneTime)
	if !s.terms.trust.Empty() {
		s.wire.SetReadDeadline(until)
		if place, r = s.nameInLane(place, r); place == nil {
			s.terms.partWith(s.conn)
			s.end(r)
			return
		}
	}
	s.end(s.validate(place, r, until))
}

// nameInLane reads the header that a trusted peer owes, and has the client that
// it names take the place of the peer; without a place it is refused for the
// reason returned. A deny list refuses it here too.
func (s *session) nameInLane(place *admission.Place, r Reason) (*admission.Place, Reason) {
	h, rest, err := proxyheader.Read(s.wire, proxyheader.V1|proxyheader.V2)
	if !place.Leave() || err != nil {
		return nil, r
	}
	if h.Source.IsValid() {
		s.client, s.target = h.Source, h.Destination
		if s.server.gate.Denies(h.Source.Addr()) {
			return nil, admission.Denied
		}
	}
	s.wire.unread(rest)
	place, ok := s.enterLane(time.Now(), r)
	if !ok {
		return nil, r
	}
	return place, r
}

// validate lets a CA validate a name, and refuses everything else for r. Nobody
// is answered before the whole hello has said which it is.
func (s *session) validate(place *admission.Place, r Reason, until time.Time) Reason {
	defer place.Leave()
	s.wire.SetReadDeadline(until)
	if !s.validates() {
		s.terms.partWith(s.conn)
		return r
	}
	s.wire.SetDeadline(until)
	secure := tls.Server(s.wire, s.terms.tls)
	if err := secure.Handshake(); err != nil {
		return handshakeFailure(err, s.wire.certErr)
	}
	if !place.Leave() {
		return r // it made way at the last moment
	}
	s.secured(secure)
	if !s.validation() {
		return r
	}
	return ClientClosed
}

// validates waits for the hello and leaves it to be read again.
func (s *session) validates() bool {
	var hello clienthello.Reader
	for {
		if _, err := s.wire.fill(); err != nil {
			return false
		}
		done, err := hello.Add(s.wire.ahead)
		s.wire.drop()
		switch {
		case err != nil, len(hello.Bytes()) > laneHelloBytes:
			return false
		case done:
			s.wire.unread(hello.Bytes())
			return certs.Validation(&tls.ClientHelloInfo{SupportedProtos: hello.Hello().Protocols})
		}
	}
}

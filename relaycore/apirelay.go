package relaycore

import (
	"errors"
	"hash/maphash"
	"net/netip"
	"time"

	"relayedge/admission"
	"relayedge/relaycore/api"
	"relayedge/relaycore/mailbox"
	"relayedge/relaycore/wire"
)

// apiRelay is the relay as its HTTP API sees it.
type apiRelay struct{ *Server }

var _ api.Relay = apiRelay{}

// client is a client as the API takes it.
func (s *sources) client(addr netip.Addr) api.Client {
	host, _ := admission.Keys(addr, s.embedded)
	c := api.Client{Host: host}
	if s.known {
		c.Source = admission.Source(addr, s.embedded)
	}
	return c
}

func (r apiRelay) Known(id wire.Identity) bool { return r.dir.known(id) }

func (r apiRelay) Bundle(id wire.Identity) (bundle []byte, signature [64]byte, ok bool) {
	return r.dir.bundle(id)
}

func (r apiRelay) Outdated(id wire.Identity, sentAt time.Time) bool {
	return r.dir.outdated(id, sentAt)
}

func (r apiRelay) Publish(id wire.Identity, bundle []byte, signature [64]byte, sentAt time.Time, from api.Client) bool {
	return r.dir.publish(id, bundle, signature, sentAt, source(maphash.Comparable(r.sources.key, from.Source)), time.Now())
}

// of completes a message with what the directory knows of its two sides.
func (r apiRelay) of(m mailbox.Message, now time.Time) mailbox.Message {
	m.Contact = r.dir.haveMet(m.Sender, m.Recipient, now)
	return m
}

func (r apiRelay) Refuses(m mailbox.Message) *mailbox.Refusal {
	now := time.Now()
	refusal := r.mail.store.Refuses(r.of(m, now), now)
	if refusal != nil {
		r.count.reject(ReasonQueueOverflow)
	}
	return refusal
}

func (r apiRelay) Deliver(m mailbox.Message) (connected bool, err error) {
	now := time.Now()
	if err := r.mail.put(r.of(m, now), now); err != nil {
		if _, full := errors.AsType[*mailbox.Refusal](err); full {
			r.count.reject(ReasonQueueOverflow)
		}
		return false, err
	}
	return r.arrived(m.Recipient), nil
}

func (r apiRelay) Fetch(recipient wire.Identity, after uint64, n, size int) []mailbox.Held {
	portion, err := r.mail.store.Read(recipient, after, n, size, time.Now())
	if err != nil {
		r.log.Error("messages in the mailbox cannot be read", "error", err)
	}
	return portion
}

func (r apiRelay) Acknowledge(recipient wire.Identity, ids []wire.MessageID) int {
	n := r.mail.store.Ack(recipient, ids, time.Now())
	if n > 0 {
		r.dir.wake(recipient) // whose connection may have waited for the room
	}
	return n
}

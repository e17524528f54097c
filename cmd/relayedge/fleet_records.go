package main

import (
	"context"
	"log/slog"

	"relayedge/admission/redisstore"
	"relayedge/cmd/internal/policy"
	"relayedge/proxy"
	"relayedge/proxy/certs"
)

// The spaces of the store's records.
const (
	certificateSpace = "certificates"
	ticketSpace      = "tickets"
)

// openRecords opens what the edges of a fleet share beside their counts.
func (f *fleet) openRecords() error {
	certificates, err := f.store.Records(certificateSpace)
	if err != nil {
		return err
	}
	tickets, err := f.store.Records(ticketSpace)
	if err != nil {
		return err
	}
	f.certificates, f.tickets = certificates, tickets.Value("secrets", proxy.TicketLife)
	return nil
}

// shared is where certificates of a fleet are kept; nil: there is none.
func (f *fleet) shared() certs.Shared {
	if !f.store.Shared() {
		return nil
	}
	return f.certificates
}

// ticketStore is where the secrets behind session tickets are; nil: in this process.
func (f *fleet) ticketStore() proxy.TicketStore {
	if !f.store.Shared() {
		return nil
	}
	return f.tickets
}

// probeShared tells whether what a CA issues could be kept in the store of a policy.
func probeShared(p *policy.Policy, log *slog.Logger) error {
	store, err := redisstore.Open(p.Redis, log)
	if err != nil {
		return err
	}
	defer store.Close()
	records, err := store.Records(certificateSpace)
	if err != nil {
		return err
	}
	return certs.ProbeShared(context.Background(), records)
}

package certs

import (
	"crypto/tls"
	"reflect"
	"testing"
	"time"
)

func TestHeld(t *testing.T) {
	pair := makeCert(t, nil, time.Hour, "relay.example.org")
	s := mustOpen(t, Config{Files: []FilePair{placed(t, pair)}, SelfIssued: []string{"localhost"}}, quiet)
	got := s.Held()
	if len(got) != 2 || got[1].NotAfter.Before(time.Now()) {
		t.Fatalf("%+v", got)
	}
	got[1].NotAfter = time.Time{}
	want := []Held{{"files", []string{"relay.example.org"}, pair.leaf.NotAfter}, {"self_issued", []string{"localhost"}, time.Time{}}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// A name that is ordered is told of before there is a certificate, and after.
func TestHeldOfAName(t *testing.T) {
	pair := makeCert(t, nil, time.Hour, "relay.example.org")
	d := &domain{name: "relay.example.org"}
	s := &Store{sources: []source{d}}
	s.served.Store(newSnapshot(s.sources))
	if got, want := s.Held(), []Held{{"acme", []string{"relay.example.org"}, time.Time{}}}; !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
	d.served.Store(&tls.Certificate{Certificate: [][]byte{pair.leaf.Raw}, Leaf: pair.leaf})
	s.refresh(time.Now())
	if got, want := s.Held(), []Held{{"acme", []string{"relay.example.org"}, pair.leaf.NotAfter}}; !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
}

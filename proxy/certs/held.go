package certs

import (
	"crypto/tls"
	"time"
)

// Held is a certificate that is configured.
type Held struct {
	Source   string // files, acme, or self_issued: its key in the policy
	Names    []string
	NotAfter time.Time // the zero time while it is not to be had
}

// Held tells of every certificate that is configured, in the order of the policy.
func (s *Store) Held() []Held { return s.served.Load().held }

func heldOf(src source, cert *tls.Certificate) Held {
	h := Held{Names: src.names()}
	switch src.(type) {
	case *filePair:
		h.Source = "files"
	case *domain:
		h.Source = "acme"
	case *selfIssued:
		h.Source = "self_issued"
	}
	if cert != nil {
		h.NotAfter = cert.Leaf.NotAfter
	}
	return h
}

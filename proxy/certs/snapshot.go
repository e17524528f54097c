package certs

import (
	"bytes"
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// snapshot is what is served at one moment. It never changes once it is
// published, so lookups need no lock.
type snapshot struct {
	// exact holds, for each name, its certificates in their order of preference:
	// those that name it, then those that cover it by a wildcard, each in
	// configured order. An empty list is a name whose certificate is not to be had.
	exact map[string][]*tls.Certificate
	// wildcard is the same for names of one more label than the key.
	wildcard map[string][]*tls.Certificate
	// fallback serves clients that name nobody: the first configured certificate,
	// and those for the same names with other kinds of keys.
	fallback []*tls.Certificate
	// configured tells an empty fallback that is not to be had from none at all.
	configured bool
	notAfter   time.Time // the earliest of the certificates held; zero without any
	held       []Held
}

func newSnapshot(sources []source) *snapshot {
	s := &snapshot{
		exact:      make(map[string][]*tls.Certificate),
		wildcard:   make(map[string][]*tls.Certificate),
		configured: len(sources) > 0,
	}
	for i, src := range sources {
		cert := src.certificate()
		s.held = append(s.held, heldOf(src, cert))
		if cert != nil && (s.notAfter.IsZero() || cert.Leaf.NotAfter.Before(s.notAfter)) {
			s.notAfter = cert.Leaf.NotAfter
		}
		if cert != nil && (i == 0 || coversAll(src.names(), sources[0].names())) {
			s.fallback = append(s.fallback, cert)
		}
		for _, name := range src.names() {
			if _, err := netip.ParseAddr(name); err == nil {
				continue // addresses are not looked up: they get the fallback
			}
			index := s.exact
			if parent, ok := strings.CutPrefix(name, "*."); ok {
				index, name = s.wildcard, parent
			}
			list := index[name]
			if cert != nil {
				list = append(list, cert)
			}
			index[name] = list
		}
	}
	for name, list := range s.exact {
		if _, parent, ok := strings.Cut(name, "."); ok {
			for _, cert := range s.wildcard[parent] {
				if !slices.Contains(list, cert) { // it may hold the name beside the wildcard
					list = append(list, cert)
				}
			}
			s.exact[name] = list
		}
	}
	return s
}

// coversAll tells whether a certificate for names can stand in for one for
// wanted. One that names nobody has no stand-in.
func coversAll(names, wanted []string) bool {
	for _, w := range wanted {
		if !slices.Contains(names, w) {
			return false
		}
	}
	return len(wanted) > 0
}

// find returns the certificates for a server name as the client sent it, and
// whether any is configured.
func (s *snapshot) find(serverName string) ([]*tls.Certificate, bool) {
	if serverName == "" {
		return s.fallback, s.configured
	}
	// A name may be as long as a hello: what cannot be a DNS name costs no look at its bytes.
	if len(serverName) > MaxNameLen+1 {
		return nil, false
	}
	if IsAddress(serverName) {
		return s.fallback, s.configured
	}
	var buf [MaxNameLen]byte
	name, ok := AppendName(buf[:0], serverName)
	if !ok {
		return nil, false
	}
	// The conversions stand inside the index expressions, where they do not allocate.
	if list, ok := s.exact[string(name)]; ok {
		return list, true
	}
	if dot := bytes.IndexByte(name, '.'); dot > 0 {
		if list, ok := s.wildcard[string(name[dot+1:])]; ok {
			return list, true
		}
	}
	return nil, false
}

// choose returns the first candidate that the client supports, one within its
// validity before others. A single candidate is not judged: when the client does
// not support it, crypto/tls ends the handshake with the right alert.
func choose(hello *tls.ClientHelloInfo, candidates []*tls.Certificate) *tls.Certificate {
	if len(candidates) == 1 {
		return candidates[0]
	}
	// The name is settled by find, which also sends IP literals to certificates
	// that do not cover them: only the client's abilities are asked for.
	abilities := *hello
	abilities.ServerName = ""
	now := time.Now()
	var outdated *tls.Certificate
	for _, cert := range candidates {
		if abilities.SupportsCertificate(cert) != nil {
			continue
		}
		if validAt(cert.Leaf, now) {
			return cert
		}
		outdated = cmp.Or(outdated, cert)
	}
	return cmp.Or(outdated, candidates[0])
}

func validAt(leaf *x509.Certificate, now time.Time) bool {
	return !now.Before(leaf.NotBefore) && !now.After(leaf.NotAfter)
}

// namesOf lists what a certificate is for: its DNS names in canonical form,
// wildcards in the left-most label included, then its addresses. The common name
// does not count, as it does not for clients.
func namesOf(leaf *x509.Certificate) []string {
	var names []string
	for _, san := range leaf.DNSNames {
		parent, wildcard := strings.CutPrefix(san, "*.")
		name, ok := canonicalName(parent)
		if !ok {
			continue
		}
		if wildcard {
			name = "*." + name
		}
		names = append(names, name)
	}
	for _, ip := range leaf.IPAddresses {
		if addr, ok := netip.AddrFromSlice(ip); ok {
			names = append(names, addr.String())
		}
	}
	// A name written twice must not list its certificate twice.
	slices.Sort(names)
	return slices.Compact(names)
}

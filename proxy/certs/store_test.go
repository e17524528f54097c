package certs

import (
	"crypto/elliptic"
	"crypto/tls"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"
)

var quiet = slog.New(slog.DiscardHandler)

func TestSelection(t *testing.T) {
	const year = 365 * 24 * time.Hour
	label := strings.Repeat("a", 63)
	long := strings.Join([]string{label, label, label, label[:61]}, ".") // 253 bytes
	first := makeCert(t, nil, year, "first.example.net")
	wild := makeCert(t, nil, year, "*.example.org", "*."+strings.Join([]string{label, label, label[:60]}, "."))
	exact := makeCert(t, nil, year, "Relay.Example.ORG", "xn--bcher-kva.example", "my_host", "not.a.*.name", "relay2", "a.b.", long, "ba.-d", "dup.example", "between.example", "DUP.example")
	s := mustOpen(t, Config{Files: []FilePair{placed(t, first), placed(t, wild), placed(t, exact)}}, quiet)

	// A name that a certificate holds twice has one candidate.
	if list, _ := s.served.Load().find("dup.example"); len(list) != 1 {
		t.Errorf("%d candidates for a name written twice", len(list))
	}

	unknown := made{}
	tests := []struct {
		name string
		sni  string
		want made
	}{
		{"no server name", "", first},
		{"its name", "first.example.net", first},
		{"exact before wildcard, upper case in the certificate", "relay.example.org", exact},
		{"upper case", "RELAY.Example.ORG", exact},
		{"trailing dot", "relay.example.org.", exact},
		{"trailing dot in the certificate", "a.b", exact},
		{"two trailing dots", "relay.example.org..", unknown},
		{"a dot alone", ".", unknown},
		{"xn--", "xn--bcher-kva.example", exact},
		{"xn-- upper case", "XN--BCHER-KVA.example", exact},
		{"not ASCII", "bücher.example", unknown},
		{"folds to ASCII only in Unicode", "first.example.\u212aet", unknown}, // the Kelvin sign
		{"underscore", "my_host", exact},
		{"one label", "relay2", exact},
		{"wildcard", "any.example.org", wild},
		{"wildcard, upper case", "ANY.EXAMPLE.ORG", wild},
		{"wildcard, trailing dot", "any.example.org.", wild},
		{"wildcard stands for one label", "any.any.example.org", unknown},
		{"wildcard does not stand for none", "example.org", unknown},
		{"wildcard does not stand for an empty label", ".example.org", unknown},
		{"a star is no name", "*.example.org", unknown},
		{"nor inside", "not.a.*.name", unknown},
		{"parent of a name", "example.net", unknown},
		{"another", "other.example.net", unknown},
		{"prefix of a name", "first.example.ne", unknown},
		{"253 bytes", long, exact},
		{"253 bytes and a dot", long + ".", exact},
		{"254 bytes", "a" + long, unknown},
		{"255 bytes", long + ".a", unknown},
		{"64 KiB", strings.Repeat("a.", 32<<10), unknown},
		{"64 KiB of address", "::1%" + strings.Repeat("a", 64<<10), unknown},
		{"label of 63 under a wildcard", label + ".example.org", wild},
		{"label of 64 under a wildcard", label + "a.example.org", unknown},
		{"NUL under a wildcard", "a\x00b.example.org", unknown},
		{"NUL at the end", "relay.example.org\x00", unknown},
		{"space under a wildcard", "a b.example.org", unknown},
		{"space in front", " relay.example.org", unknown},
		{"hyphen first", "-a.example.org", unknown},
		{"hyphen last", "a-.example.org", unknown},
		{"hyphen inside", "a-b.example.org", wild},
		{"invalid in the certificate too", "ba.-d", unknown},
		{"quote and newline", "a\"\n.example.org", unknown},
		{"port", "any.example.org:443", unknown},
		{"IPv4 literal", "192.0.2.1", first},
		{"IPv6 literal", "2001:db8::1", first},
		{"IPv6 literal in brackets", "[2001:db8::1]", first},
		{"bracket not closed", "[2001:db8::1", unknown},
		{"IPv6 with zone", "fe80::1%a b", unknown},
		{"no IPv4 after all", "192.0.2.256", unknown},
		{"digits", "12345", unknown},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if tt.want.leaf != nil {
				serves(t, s, tt.sni, tt.want)
				return
			}
			if cert, err := s.Certificate(&tls.ClientHelloInfo{ServerName: tt.sni}); cert != nil || err != ErrUnknownName {
				t.Fatalf("%v, %v, want ErrUnknownName", cert, err)
			}
		})
	}
}

// Files come before our own making, whatever their order in the policy.
func TestDefaultIsTheFirstOfFiles(t *testing.T) {
	first := makeCert(t, nil, time.Hour, "first.example.net")
	s := mustOpen(t, Config{SelfIssued: []string{"localhost"}, Files: []FilePair{placed(t, first)}}, quiet)
	serves(t, s, "", first)
	serves(t, s, "127.0.0.1", first)
	if cert, err := s.Certificate(&tls.ClientHelloInfo{ServerName: "localhost"}); err != nil || cert.Leaf.VerifyHostname("localhost") != nil {
		t.Fatalf("localhost: %v", err)
	}
}

func TestNothingConfigured(t *testing.T) {
	s := mustOpen(t, Config{}, quiet)
	for _, name := range []string{"", "a.example", "::1"} {
		if _, err := s.Certificate(&tls.ClientHelloInfo{ServerName: name}); err != ErrUnknownName {
			t.Errorf("%q: %v", name, err)
		}
	}
	if at := s.NotAfter(); !at.IsZero() {
		t.Errorf("NotAfter %v", at)
	}
}

// hellos of clients that can verify one kind of signature only.
func helloFor(version uint16, name string, scheme tls.SignatureScheme) *tls.ClientHelloInfo {
	return &tls.ClientHelloInfo{
		ServerName:        name,
		SupportedVersions: []uint16{version},
		SignatureSchemes:  []tls.SignatureScheme{scheme},
		SupportedCurves:   []tls.CurveID{tls.X25519, tls.CurveP256},
		SupportedPoints:   []uint8{0},
		CipherSuites:      []uint16{tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256},
	}
}

func TestSeveralForOneName(t *testing.T) {
	const year = 365 * 24 * time.Hour
	ec := makeCert(t, nil, year, "relay.example.org", "also.example.org")
	rsa := makeCert(t, sharedRSA(), year, "*.example.org", "relay.example.org", "also.example.org")
	ed := makeCert(t, newEd25519(t), year, "relay.example.org")
	old := makeCert(t, nil, -time.Hour, "stale.example.net")
	renewed := makeCert(t, nil, year, "stale.example.net")
	gone := makeCert(t, nil, -time.Hour, "gone.example.net")
	goneToo := makeCert(t, nil, -time.Minute, "gone.example.net")
	s := mustOpen(t, Config{Files: []FilePair{placed(t, ec), placed(t, rsa), placed(t, ed), placed(t, old), placed(t, renewed), placed(t, gone), placed(t, goneToo)}}, quiet)
	tests := []struct {
		name   string
		sni    string
		scheme tls.SignatureScheme
		want   made
	}{
		{"the first", "relay.example.org", tls.ECDSAWithP256AndSHA256, ec},
		{"RSA client", "relay.example.org", tls.PSSWithSHA256, rsa},
		{"RSA client, upper case and dot", "RELAY.example.org.", tls.PSSWithSHA256, rsa},
		{"Ed25519 client", "relay.example.org", tls.Ed25519, ed},
		{"none fits: the first, and crypto/tls says why not", "relay.example.org", tls.ECDSAWithP521AndSHA512, ec},
		{"no server name", "", tls.ECDSAWithP256AndSHA256, ec},
		{"no server name, RSA client", "", tls.PSSWithSHA256, rsa},
		{"IP literal, RSA client", "192.0.2.1", tls.PSSWithSHA256, rsa},
		{"no server name, and only a certificate for fewer names would fit", "", tls.Ed25519, ec},
		{"the first of several expired ones", "gone.example.net", tls.ECDSAWithP256AndSHA256, gone},
		{"one within its validity before an expired one", "stale.example.net", tls.ECDSAWithP256AndSHA256, renewed},
	}
	for _, tt := range tests {
		for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
			t.Run(tt.name+", "+tls.VersionName(version), func(t *testing.T) {
				cert, err := s.Certificate(helloFor(version, tt.sni, tt.scheme))
				if err != nil || !cert.Leaf.Equal(tt.want.leaf) {
					t.Fatalf("served %v (%v): %v", cert.Leaf.DNSNames, cert.Leaf.PublicKeyAlgorithm, err)
				}
			})
		}
	}
}

// A certificate for the very name that the client cannot use gives way to a
// wildcard one that it can, and an expired one is better than none it can use.
func TestWildcardStandsIn(t *testing.T) {
	wild := makeCert(t, sharedRSA(), time.Hour, "*.example.org")
	exact := makeCert(t, nil, -time.Hour, "relay.example.org")
	p384 := makeCert(t, newECDSA(t, elliptic.P384()), time.Hour, "relay.example.org")
	s := mustOpen(t, Config{Files: []FilePair{placed(t, wild), placed(t, exact), placed(t, p384)}}, quiet)
	for scheme, want := range map[tls.SignatureScheme]made{
		tls.PSSWithSHA256:          wild,
		tls.ECDSAWithP256AndSHA256: exact,
		tls.ECDSAWithP384AndSHA384: p384,
	} {
		cert, err := s.Certificate(helloFor(tls.VersionTLS13, "relay.example.org", scheme))
		if err != nil || !cert.Leaf.Equal(want.leaf) {
			t.Errorf("%v: served %v (%v)", scheme, cert.Leaf.DNSNames, err)
		}
	}
}

// pending is a source whose certificate is not there yet, as an issuer's is
// before its first order.
type pending struct {
	issued []string
	cert   *tls.Certificate
	next   *tls.Certificate
}

func (p *pending) names() []string               { return p.issued }
func (p *pending) certificate() *tls.Certificate { return p.cert }
func (p *pending) refresh(time.Time) bool {
	if p.next == nil {
		return false
	}
	p.cert, p.next = p.next, nil
	return true
}

func TestUnavailable(t *testing.T) {
	other, err := openSelfIssued([]string{"other.example.org", "also.example.org"}, time.Now(), quiet)
	if err != nil {
		t.Fatal(err)
	}
	p := &pending{issued: []string{"relay.example.org", "*.wild.example.org", "also.example.org"}}
	s := &Store{sources: []source{p, other}}
	s.served.Store(newSnapshot(s.sources))
	ask := func(name string) error {
		_, err := s.Certificate(&tls.ClientHelloInfo{ServerName: name})
		return err
	}
	for name, want := range map[string]error{
		"relay.example.org":  ErrUnavailable,
		"a.wild.example.org": ErrUnavailable,
		"":                   ErrUnavailable, // the first configured certificate is not to be had
		"::1":                ErrUnavailable,
		"also.example.org":   nil, // another source has one
		"other.example.org":  nil,
		"not.example.org":    ErrUnknownName,
	} {
		if err := ask(name); err != want {
			t.Errorf("%q: %v, want %v", name, err, want)
		}
	}
	if errors.Is(ErrUnavailable, ErrUnknownName) {
		t.Error("the two errors must be told apart")
	}
	p.next = other.cert
	s.refresh(time.Now())
	for _, name := range []string{"relay.example.org", "a.wild.example.org", "", "::1"} {
		if err := ask(name); err != nil {
			t.Errorf("%q, once it is there: %v", name, err)
		}
	}
}

func TestNotAfterIsTheEarliest(t *testing.T) {
	soon := makeCert(t, nil, time.Hour, "soon.example.org")
	late := makeCert(t, nil, 24*time.Hour, "late.example.org")
	for _, files := range [][]FilePair{
		{placed(t, soon), placed(t, late)},
		{placed(t, late), placed(t, soon)},
	} {
		s := mustOpen(t, Config{Files: files, SelfIssued: []string{"localhost"}}, quiet)
		if got := s.NotAfter(); !got.Equal(soon.leaf.NotAfter) {
			t.Errorf("NotAfter %v, want %v", got, soon.leaf.NotAfter)
		}
	}
}

func lookups(tb testing.TB) (*Store, map[string]*tls.ClientHelloInfo) {
	s, err := Open(Config{SelfIssued: []string{"relay.example.org", "*.example.org"}}, quiet)
	if err != nil {
		tb.Fatal(err)
	}
	hellos := make(map[string]*tls.ClientHelloInfo)
	for _, name := range []string{"relay.example.org", "RELAY.EXAMPLE.ORG.", "any.example.org", "other.example.net", "", "192.0.2.1", "[2001:db8::1]"} {
		hellos[name] = &tls.ClientHelloInfo{ServerName: name}
	}
	return s, hellos
}

func TestLookupDoesNotAllocate(t *testing.T) {
	s, hellos := lookups(t)
	for name, hello := range hellos {
		if n := testing.AllocsPerRun(100, func() { _, _ = s.Certificate(hello) }); n != 0 {
			t.Errorf("%q: %v allocations", name, n)
		}
	}
}

func BenchmarkCertificate(b *testing.B) {
	s, hellos := lookups(b)
	for name, hello := range hellos {
		b.Run("name="+name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				_, _ = s.Certificate(hello)
			}
		})
	}
}

package certs

import (
	"crypto"
	"crypto/ecdh"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// must returns a PEM block of what a marshaller gave.
func must(kind string, der []byte, err error) string {
	if err != nil {
		panic(err)
	}
	return block(kind, der)
}

func TestOpenTakesEveryUsualForm(t *testing.T) {
	ec := newECDSA(t, elliptic.P384())
	ecCert := makeCert(t, ec, time.Hour, "a.example")
	rsaCert := makeCert(t, sharedRSA(), time.Hour, "a.example")
	edCert := makeCert(t, newEd25519(t), time.Hour, "a.example")
	issuer := makeCert(t, nil, time.Hour, "issuer.example")
	sec1, sec1Err := x509.MarshalECPrivateKey(ec.(*ecdsa.PrivateKey))
	tests := []struct {
		name       string
		chain, key string
		want       made
		length     int
	}{
		{"PKCS 8, ECDSA", ecCert.chain, ecCert.key, ecCert, 1},
		{"SEC 1", ecCert.chain, must("EC PRIVATE KEY", sec1, sec1Err), ecCert, 1},
		{"SEC 1 after its parameters", ecCert.chain, block("EC PARAMETERS", []byte{6, 5, 43, 129, 4, 0, 34}) + must("EC PRIVATE KEY", sec1, sec1Err), ecCert, 1},
		{"PKCS 8, RSA", rsaCert.chain, rsaCert.key, rsaCert, 1},
		{"PKCS 1", rsaCert.chain, block("RSA PRIVATE KEY", x509.MarshalPKCS1PrivateKey(sharedRSA().(*rsa.PrivateKey))), rsaCert, 1},
		{"Ed25519", edCert.chain, edCert.key, edCert, 1},
		{"chain", ecCert.chain + issuer.chain, ecCert.key, ecCert, 2},
		{"text between the blocks", "subject=a\n" + ecCert.chain + "\nissuer=b\n" + issuer.chain + "end", ecCert.key, ecCert, 2},
		{"CRLF", strings.ReplaceAll(ecCert.chain, "\n", "\r\n"), strings.ReplaceAll(ecCert.key, "\n", "\r\n"), ecCert, 1},
		{"all in both files", ecCert.key + ecCert.chain, ecCert.chain + ecCert.key, ecCert, 1},
		{"just the size", ecCert.chain + strings.Repeat("\n", maxFileBytes-len(ecCert.chain)), ecCert.key, ecCert, 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var j journal
			s := mustOpen(t, Config{Files: []FilePair{placed(t, made{chain: tt.chain, key: tt.key})}}, j.logger())
			serves(t, s, "a.example", tt.want)
			cert := s.served.Load().fallback[0]
			if len(cert.Certificate) != tt.length {
				t.Errorf("chain of %d, want %d", len(cert.Certificate), tt.length)
			}
			if !tt.want.signer.Public().(interface{ Equal(crypto.PublicKey) bool }).Equal(cert.PrivateKey.(crypto.Signer).Public()) {
				t.Error("another key")
			}
			j.logged(t) // nothing to warn of
		})
	}
}

func TestOpenRefuses(t *testing.T) {
	t.Setenv("GODEBUG", "rsa1024min=0") // to make an RSA key that is too small
	good := makeCert(t, nil, time.Hour, "a.example")
	other := makeCert(t, nil, time.Hour, "a.example")
	p224 := makeCert(t, newECDSA(t, elliptic.P224()), time.Hour, "a.example")
	small, err := rsa.GenerateKey(rand.Reader, 768)
	if err != nil {
		t.Fatal(err)
	}
	rsa768 := makeCert(t, small, time.Hour, "a.example")
	ecdhKey, err := ecdh.X25519().GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	x25519, x25519Err := x509.MarshalPKCS8PrivateKey(ecdhKey)
	der, _ := pem.Decode([]byte(good.key))
	legacy := string(pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der.Bytes,
		Headers: map[string]string{"Proc-Type": "4,ENCRYPTED", "DEK-Info": "AES-256-CBC,00"}}))
	cut := func(s string) string { return s[:len(s)/2] }

	tests := []struct {
		name       string
		chain, key string
		at         string // the path that the error puts in front: c, k or "" for both
		want       string
	}{
		{"empty certificate", "", good.key, "c", "holds no PEM block"},
		{"empty key", good.chain, "", "k", "holds no PEM block"},
		{"DER", string(good.leaf.Raw), good.key, "c", "holds no PEM block"},
		{"truncated certificate", cut(good.chain), good.key, "c", "of 1 PEM blocks only 0 can be read"},
		{"truncated last line", good.chain[:len(good.chain)-3], good.key, "c", "of 1 PEM blocks only 0"},
		{"truncated intermediate", good.chain + cut(other.chain), good.key, "c", "of 2 PEM blocks only 1"},
		{"damaged before a good one", cut(other.chain) + "\n" + good.chain, good.key, "c", "of 2 PEM blocks only 1"},
		{"truncated key", good.chain, cut(good.key), "k", "of 1 PEM blocks only 0"},
		{"not a certificate inside", block("CERTIFICATE", []byte("x")), good.key, "c", "certificate 1 in the file cannot be read"},
		{"bad intermediate", good.chain + block("CERTIFICATE", []byte("x")), good.key, "c", "certificate 2 in the file cannot be read"},
		{"other block for a certificate", block("PKCS7", []byte("x")), good.key, "c", "holds no CERTIFICATE block, but PKCS7"},
		{"wrong way round", good.key, good.chain, "c", "wrong way round"},
		{"certificate for a key", good.chain, good.chain, "k", "holds no private key, but CERTIFICATE"},
		{"mismatch", good.chain, other.key, "", "does not belong to the certificate"},
		{"mismatch of kind", good.chain, makeCert(t, sharedRSA(), time.Hour, "a").key, "", "does not belong to the certificate"},
		{"intermediate first", other.chain + good.chain, good.key, "c", "is not the first"},
		{"encrypted, PKCS 8", good.chain, block("ENCRYPTED PRIVATE KEY", der.Bytes), "k", "openssl pkey"},
		{"encrypted, legacy", good.chain, legacy, "k", "openssl pkey"},
		{"garbage for a key", good.chain, block("PRIVATE KEY", []byte("x")), "k", "must be PKCS #8, PKCS #1 or SEC 1"},
		{"a key that cannot sign", good.chain, must("PRIVATE KEY", x25519, x25519Err), "k", "cannot sign"},
		{"a curve that TLS does not know", p224.chain, p224.key, "c", "P-224"},
		{"a small RSA key", rsa768.chain, rsa768.key, "c", "768 bits"},
		{"too large a certificate", good.chain + strings.Repeat("\n", maxFileBytes-len(good.chain)+1), good.key, "c", "larger than 1048576 bytes"},
		{"too large a key", good.chain, good.key + strings.Repeat("\n", maxFileBytes), "k", "larger than 1048576 bytes"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			at := placed(t, made{chain: tt.chain, key: tt.key})
			refuses(t, at, tt.at, tt.want)
		})
	}
	for name, tt := range map[string]struct {
		spoil func(t *testing.T, path string)
		want  string
	}{
		"missing":          {func(t *testing.T, path string) {}, "check the path"},
		"directory":        {func(t *testing.T, path string) { try(t, os.Mkdir(path, 0o700)) }, "not a regular file"},
		"dangling symlink": {func(t *testing.T, path string) { try(t, os.Symlink("nowhere", path)) }, "check the path"},
		"symlink loop":     {func(t *testing.T, path string) { try(t, os.Symlink(filepath.Base(path), path)) }, "symbolic links"},
		"unreadable": {func(t *testing.T, path string) {
			if os.Geteuid() == 0 {
				t.Skip("nothing is unreadable for root")
			}
			write(t, path, good.chain)
			try(t, os.Chmod(path, 0))
		}, "let the user of this process read it"},
	} {
		for _, which := range []string{"c", "k"} {
			t.Run(name+" "+which, func(t *testing.T) {
				at := placed(t, good)
				path := map[string]string{"c": at.Certificate, "k": at.Key}[which]
				try(t, os.Remove(path))
				tt.spoil(t, path)
				refuses(t, at, which, tt.want)
			})
		}
	}
}

func try(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// refuses fails the test unless Open refuses the pair, names both paths, says
// what is wrong at the one at fault and tells no contents.
func refuses(t *testing.T, at FilePair, which, want string) {
	t.Helper()
	s, err := Open(Config{Files: []FilePair{at}}, quiet)
	if err == nil || s != nil {
		t.Fatal("opened")
	}
	text := err.Error()
	front := "certificate " + at.Certificate + " with key " + at.Key + ": "
	front += map[string]string{"c": at.Certificate + ": ", "k": at.Key + ": "}[which]
	if !strings.HasPrefix(text, front) || !strings.Contains(text, want) {
		t.Errorf("error %q, want %q and then %q", text, front, want)
	}
	if strings.Contains(text, "-----BEGIN CERT") || strings.Contains(text, "PRIVATE KEY-----") {
		t.Errorf("error %q quotes the file", text)
	}
}

func TestOpenNamesEveryFaultyPair(t *testing.T) {
	good := makeCert(t, nil, time.Hour, "a.example")
	one, two, three := placed(t, made{chain: good.chain}), placed(t, good), place(t)
	_, err := Open(Config{Files: []FilePair{one, two, three}}, quiet)
	if err == nil {
		t.Fatal("opened")
	}
	for _, path := range []string{one.Key, three.Certificate, three.Key} {
		if !strings.Contains(err.Error(), path+": ") {
			t.Errorf("error %q does not name %s", err, path)
		}
	}
	if strings.Contains(err.Error(), two.Key) {
		t.Errorf("error %q names a good pair", err)
	}
}

// An edge that does not start is worse than one with an outdated certificate.
func TestOpenServesOutsideValidityWithAWarning(t *testing.T) {
	now := time.Now()
	for _, tt := range []struct {
		name string
		cert made
		want []string
	}{
		{"expired", makeCert(t, nil, -time.Minute, "a.example"), []string{"WARN", "expired"}},
		{"not yet valid", makeCertBetween(t, nil, now.Add(time.Hour), now.Add(2*time.Hour), "a.example"), []string{"WARN", "not valid yet"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var j journal
			at := placed(t, tt.cert)
			s := mustOpen(t, Config{Files: []FilePair{at}}, j.logger())
			serves(t, s, "a.example", tt.cert)
			j.logged(t, append(tt.want, at.Certificate, at.Key))
		})
	}
}

func TestOpenWarnsOfACertificateWithoutNames(t *testing.T) {
	var j journal
	cert := makeCert(t, nil, time.Hour)
	s := mustOpen(t, Config{Files: []FilePair{placed(t, cert)}, SelfIssued: []string{"localhost"}}, j.logger())
	serves(t, s, "", cert)
	if n := len(s.served.Load().fallback); n != 1 {
		t.Errorf("%d certificates stand in for one without names", n-1)
	}
	j.logged(t, []string{"WARN", "subject alternative name"})
}

// A certificate for an address alone can only come from the default, but it does
// hold a name: there is nothing to warn of, and it has its own stand-ins.
func TestOpenTakesACertificateForAnAddress(t *testing.T) {
	var j journal
	address := func(signer crypto.Signer, ip string) made {
		now := time.Now()
		return makeFrom(t, signer, &x509.Certificate{NotBefore: now, NotAfter: now.Add(time.Hour), IPAddresses: []net.IP{net.ParseIP(ip)}})
	}
	ec, rsa, other := address(nil, "192.0.2.1"), address(sharedRSA(), "192.0.2.1"), address(nil, "192.0.2.2")
	s := mustOpen(t, Config{Files: []FilePair{placed(t, ec), placed(t, rsa), placed(t, other)}}, j.logger())
	if n := len(s.served.Load().fallback); n != 2 {
		t.Errorf("%d certificates for the default, want the ECDSA and the RSA one", n)
	}
	if _, err := s.Certificate(&tls.ClientHelloInfo{ServerName: "192.0.2.1."}); err != ErrUnknownName {
		t.Errorf("an address with a dot is neither an address nor a name: %v", err)
	}
	j.logged(t)
}

// Two reads are no snapshot: files that are swapped between them are read again.
func TestFilesThatChangeWhileTheyAreRead(t *testing.T) {
	good := makeCert(t, nil, time.Hour, "a.example")
	at := placed(t, good)
	for _, tt := range []struct{ swaps, reads int }{{0, 1}, {1, 2}, {2, 3}, {100, loadTries}} {
		n := 0
		seen := at.still(func() {
			if n++; n <= tt.swaps {
				write(t, at.Key, strings.Repeat("x", n))
			}
		})
		if n != tt.reads {
			t.Errorf("%d swaps: read %d times, want %d", tt.swaps, n, tt.reads)
		}
		if tt.swaps < loadTries != at.stat().same(seen) {
			t.Errorf("%d swaps: a change after the last read would be missed, or one seen that was not", tt.swaps)
		}
		write(t, at.Key, good.key)
	}
}

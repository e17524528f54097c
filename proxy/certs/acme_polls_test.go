package certs

import (
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509/pkix"
	"encoding/asn1"
	"io"
	"math/big"
	"net/http"
	"net/http/httptest"
	"path"
	"sync/atomic"
	"testing"
	"time"

	"relayedge/internal/testca"
)

// A CA that is asked again says when a certificate is to be renewed (RFC 9773),
// and is not asked before it wants to be.
func TestTheCAIsAskedAboutTheRenewal(t *testing.T) {
	t.Parallel()
	s := newSite(t, testca.Options{}, "a.example.org")
	s.start()
	s.obtained(1)
	s.end()
	m := s.store.acme.Load()
	key := m.recordKey(path.Join("names", "a.example.org"))
	noted := loadRecord(t.Context(), m.storage, key, time.Now())
	leaf := m.current()[0].served.Load().Leaf
	if noted.Serial != serialOf(leaf) || noted.Renew.Before(time.Now()) || noted.Renew.After(leaf.NotAfter) {
		t.Errorf("with the certificate the CA said %+v", noted)
	}
	asked := s.ca.Requests()
	s.start()
	s.certified("a.example.org")
	s.end()
	if n := s.ca.Requests() - asked; n != 0 {
		t.Errorf("%d requests before the time", n)
	}

	due := noted
	due.Renew, due.AskNext = time.Time{}, time.Now().Add(-time.Second)
	try(t, due.store(t.Context(), m.storage, key))
	s.start()
	var again record
	s.until("the CA's answer", func() bool {
		again = loadRecord(t.Context(), m.storage, key, time.Now())
		return again.AskNext.After(time.Now().Add(minAskInterval - time.Minute))
	})
	if again.Renew.Before(time.Now()) || again.Renew.After(leaf.NotAfter) {
		t.Errorf("asked again it said %+v", again)
	}
	s.end()
	if n := s.ca.Orders(); n != 1 {
		t.Errorf("%d orders", n)
	}
}

// Where the certificate names a responder, its word is served with the
// certificate, and kept across restarts.
func TestStapling(t *testing.T) {
	t.Parallel()
	responder := new(responder)
	server := httptest.NewServer(responder)
	defer server.Close()
	s := newSite(t, testca.Options{OCSP: server.URL}, "a.example.org")
	responder.key = s.ca.IssuerKey(t)
	s.start()
	s.obtained(1)
	var staple []byte
	s.until("a staple", func() bool {
		state, err := handshake(s.tls.Addr().String(), "a.example.org")
		if err == nil {
			staple = state.OCSPResponse
		}
		return len(staple) > 0
	})
	s.end()
	s.start()
	s.until("the staple that is stored", func() bool {
		state, err := handshake(s.tls.Addr().String(), "a.example.org")
		return err == nil && string(state.OCSPResponse) == string(staple)
	})
	if n := responder.asked.Load(); n != 1 {
		t.Errorf("the responder was asked %d times", n)
	}
}

// A responder that is down costs the staple alone.
func TestStaplingWithoutAResponder(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.NotFoundHandler())
	server.Close()
	s := newSite(t, testca.Options{OCSP: server.URL}, "a.example.org")
	s.start()
	s.certified("a.example.org")
	s.end()
	if cert, err := s.store.Certificate(&tls.ClientHelloInfo{ServerName: "a.example.org"}); err != nil || len(cert.OCSPStaple) != 0 || len(cert.Leaf.OCSPServer) != 1 {
		t.Errorf("%v", err)
	}
}

// responder says of every certificate that it is good.
type responder struct {
	key   *rsa.PrivateKey
	asked atomic.Int32
}

func (o *responder) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	o.asked.Add(1)
	question, err := io.ReadAll(r.Body)
	var answer []byte
	if err == nil {
		answer, err = o.answer(question, time.Now().UTC())
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/ocsp-response")
	w.Write(answer)
}

type ocspCertID struct {
	Hash            pkix.AlgorithmIdentifier
	Name, IssuerKey []byte
	Serial          *big.Int
}

type ocspSingle struct {
	Cert ocspCertID
	Good asn1.Flag `asn1:"tag:0"`
	This time.Time `asn1:"generalized"`
	Next time.Time `asn1:"generalized,explicit,tag:0"`
}

type ocspBody struct {
	Type asn1.ObjectIdentifier
	Data []byte
}

// answer is RFC 6960, section 4.2.1.
func (o *responder) answer(question []byte, now time.Time) ([]byte, error) {
	var asked struct {
		TBS struct {
			List []struct{ Cert ocspCertID }
		}
	}
	if _, err := asn1.Unmarshal(question, &asked); err != nil {
		return nil, err
	}
	cert := asked.TBS.List[0].Cert
	tbs, err := asn1.Marshal(struct {
		ByKey    []byte    `asn1:"explicit,tag:2"`
		Produced time.Time `asn1:"generalized"`
		Answers  []ocspSingle
	}{cert.IssuerKey, now, []ocspSingle{{cert, true, now.Add(-time.Minute), now.Add(24 * time.Hour)}}})
	if err != nil {
		return nil, err
	}
	digest := sha256.Sum256(tbs)
	signature, err := rsa.SignPKCS1v15(rand.Reader, o.key, crypto.SHA256, digest[:])
	if err != nil {
		return nil, err
	}
	basic, err := asn1.Marshal(struct {
		TBS       asn1.RawValue
		Algorithm pkix.AlgorithmIdentifier
		Signature asn1.BitString
	}{
		asn1.RawValue{FullBytes: tbs},
		pkix.AlgorithmIdentifier{Algorithm: asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 1, 11}, Parameters: asn1.NullRawValue}, // sha256WithRSAEncryption
		asn1.BitString{Bytes: signature, BitLength: 8 * len(signature)},
	})
	if err != nil {
		return nil, err
	}
	return asn1.Marshal(struct {
		Status asn1.Enumerated
		Body   ocspBody `asn1:"explicit,tag:0"`
	}{0, ocspBody{asn1.ObjectIdentifier{1, 3, 6, 1, 5, 5, 7, 48, 1, 1}, basic}})
}

package proxyheader

import (
	"crypto/tls"
	"unicode/utf8"

	"github.com/pires/go-proxyproto"
	"github.com/pires/go-proxyproto/tlvparse"
)

// The parts of an SSL TLV (section 2.2.6).
const (
	clientSSL      = 0x01
	clientCertConn = 0x02
	clientCertSess = 0x04

	subtypeVersion    = 0x21
	subtypeCommonName = 0x22
	subtypeCipher     = 0x23
)

// maxSSLText is the longest text that an SSL TLV is made with. A common name is
// the client's choice and may be of any length; cut short, it would be another's.
const maxSSLText = 256

// SSL is the content of the SSL TLV (section 2.2.6).
type SSL struct {
	Verified   bool   // the client presented a certificate and it was verified
	Resumed    bool   // it did so on an earlier connection of the TLS session
	Version    string // "TLSv1.3"
	Cipher     string // OpenSSL's name: "ECDHE-ECDSA-AES128-GCM-SHA256", "TLS_AES_128_GCM_SHA256"
	CommonName string // of the client's certificate; empty without one
}

// SSL decodes the SSL TLV; false if there is none or it is malformed. Verified
// takes both a verify field of zero and a certificate: some senders write zero
// without one.
func (h *Header) SSL() (SSL, bool) {
	value, ok := h.Lookup(TypeSSL)
	if !ok {
		return SSL{}, false
	}
	raw, err := tlvparse.SSL(proxyproto.TLV{Type: TypeSSL, Value: value})
	if err != nil || !raw.ClientSSL() {
		return SSL{}, false
	}
	s := SSL{Resumed: raw.ClientCertSess() && !raw.ClientCertConn()}
	s.Verified = raw.Verified() && (raw.ClientCertSess() || raw.ClientCertConn())
	s.Version, _ = raw.SSLVersion()
	s.Cipher, _ = raw.SSLCipher()
	s.CommonName, _ = raw.ClientCN()
	return s, true
}

// TLV encodes s as the SSL TLV. A text that is longer than 256 bytes or not
// UTF-8 is left out.
func (s SSL) TLV() TLV {
	client, verify := byte(clientSSL), byte(1)
	if s.Verified || s.CommonName != "" {
		client |= clientCertSess
		if !s.Resumed {
			client |= clientCertConn
		}
	}
	if s.Verified {
		verify = 0
	}
	value := []byte{client, 0, 0, 0, verify}
	for _, sub := range []struct {
		typ  byte
		text string
	}{{subtypeVersion, s.Version}, {subtypeCommonName, s.CommonName}, {subtypeCipher, s.Cipher}} {
		if sub.text != "" && len(sub.text) <= maxSSLText && utf8.ValidString(sub.text) {
			value = appendTLV(value, sub.typ, []byte(sub.text))
		}
	}
	return TLV{Type: TypeSSL, Value: value}
}

// VersionName returns the name of a TLS version as OpenSSL writes it, or an
// empty text for one that crypto/tls does not speak.
func VersionName(version uint16) string {
	switch version {
	case tls.VersionTLS10:
		return "TLSv1"
	case tls.VersionTLS11:
		return "TLSv1.1"
	case tls.VersionTLS12:
		return "TLSv1.2"
	case tls.VersionTLS13:
		return "TLSv1.3"
	}
	return ""
}

// cipherNames are OpenSSL's names of the suites below TLS 1.3 that crypto/tls has.
var cipherNames = map[uint16]string{
	tls.TLS_RSA_WITH_RC4_128_SHA:                      "RC4-SHA",
	tls.TLS_RSA_WITH_3DES_EDE_CBC_SHA:                 "DES-CBC3-SHA",
	tls.TLS_RSA_WITH_AES_128_CBC_SHA:                  "AES128-SHA",
	tls.TLS_RSA_WITH_AES_256_CBC_SHA:                  "AES256-SHA",
	tls.TLS_RSA_WITH_AES_128_CBC_SHA256:               "AES128-SHA256",
	tls.TLS_RSA_WITH_AES_128_GCM_SHA256:               "AES128-GCM-SHA256",
	tls.TLS_RSA_WITH_AES_256_GCM_SHA384:               "AES256-GCM-SHA384",
	tls.TLS_ECDHE_ECDSA_WITH_RC4_128_SHA:              "ECDHE-ECDSA-RC4-SHA",
	tls.TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA:          "ECDHE-ECDSA-AES128-SHA",
	tls.TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA:          "ECDHE-ECDSA-AES256-SHA",
	tls.TLS_ECDHE_RSA_WITH_RC4_128_SHA:                "ECDHE-RSA-RC4-SHA",
	tls.TLS_ECDHE_RSA_WITH_3DES_EDE_CBC_SHA:           "ECDHE-RSA-DES-CBC3-SHA",
	tls.TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA:            "ECDHE-RSA-AES128-SHA",
	tls.TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA:            "ECDHE-RSA-AES256-SHA",
	tls.TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA256:       "ECDHE-ECDSA-AES128-SHA256",
	tls.TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256:         "ECDHE-RSA-AES128-SHA256",
	tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256:         "ECDHE-RSA-AES128-GCM-SHA256",
	tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256:       "ECDHE-ECDSA-AES128-GCM-SHA256",
	tls.TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384:         "ECDHE-RSA-AES256-GCM-SHA384",
	tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384:       "ECDHE-ECDSA-AES256-GCM-SHA384",
	tls.TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256:   "ECDHE-RSA-CHACHA20-POLY1305",
	tls.TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256: "ECDHE-ECDSA-CHACHA20-POLY1305",
}

// CipherName returns OpenSSL's name of a cipher suite. Those of TLS 1.3 are the
// standard's in both; so is, for want of another, that of an unknown one.
func CipherName(id uint16) string {
	if name, ok := cipherNames[id]; ok {
		return name
	}
	return tls.CipherSuiteName(id)
}

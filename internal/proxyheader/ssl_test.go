package proxyheader

import (
	"crypto/tls"
	"strings"
	"testing"
)

func TestSSLBytes(t *testing.T) {
	for name, row := range map[string]struct {
		ssl  SSL
		want string
	}{
		"no certificate": {SSL{Version: "TLSv1.3", Cipher: "TLS_AES_128_GCM_SHA256"},
			"01 00000001 210007 544c5376312e33 230016 544c535f4145535f3132385f47434d5f534841323536"},
		"verified":     {SSL{Verified: true, Version: "TLSv1.2", CommonName: "bob"}, "07 00000000 210007 544c5376312e32 220003 626f62"},
		"resumed":      {SSL{Verified: true, Resumed: true, Version: "TLSv1.2", CommonName: "bob"}, "05 00000000 210007 544c5376312e32 220003 626f62"},
		"not verified": {SSL{Version: "TLSv1.2", CommonName: "bob"}, "07 00000001 210007 544c5376312e32 220003 626f62"},
		"nameless":     {SSL{Verified: true, Version: "TLSv1.2"}, "07 00000000 210007 544c5376312e32"},
	} {
		t.Run(name, func(t *testing.T) {
			got := row.ssl.TLV()
			if want := unhex(t, row.want); got.Type != TypeSSL || string(got.Value) != string(want) {
				t.Fatalf("%#x % x", got.Type, got.Value)
			}
			h := Header{TLVs: []TLV{{TypeALPN, nil}, got}}
			if back, ok := h.SSL(); !ok || back != row.ssl {
				t.Fatalf("%+v, %v", back, ok)
			}
		})
	}
}

// A name that would be cut or is no text is left out, not changed into another's.
func TestSSLNames(t *testing.T) {
	for _, row := range []struct {
		name string
		want string
	}{
		{strings.Repeat("x", 256), strings.Repeat("x", 256)},
		{strings.Repeat("x", 257), ""},
		{strings.Repeat("x", 1<<17), ""},
		{"\xff", ""},
		{"Zoë", "Zoë"},
	} {
		h := Header{TLVs: []TLV{SSL{Verified: true, Version: "TLSv1.3", CommonName: row.name}.TLV()}}
		got, ok := h.SSL()
		if !ok || got.CommonName != row.want || !got.Verified {
			t.Errorf("%.20q…: %+v, %v", row.name, got, ok)
		}
	}
}

func TestSSLDecoding(t *testing.T) {
	for name, row := range map[string]struct {
		value string
		want  SSL
		ok    bool
	}{
		"verify is zero without a certificate": {"01 00000000 210007 544c5376312e33", SSL{Version: "TLSv1.3"}, true},
		"a certificate that failed":            {"03 00000013 210007 544c5376312e33", SSL{Version: "TLSv1.3"}, true},
		"unknown sub-TLVs":                     {"01 00000001 250003 525341 210007 544c5376312e33", SSL{Version: "TLSv1.3"}, true},
		"not over TLS":                         {"00 00000001", SSL{}, false},
		"no version":                           {"01 00000001", SSL{}, false},
		"short":                                {"01 000000", SSL{}, false},
		"empty":                                {"", SSL{}, false},
		"sub-TLV overruns":                     {"01 00000001 210008 544c5376312e33", SSL{}, false},
		"trailing byte":                        {"01 00000001 210007 544c5376312e33 21", SSL{}, false},
	} {
		t.Run(name, func(t *testing.T) {
			h := Header{TLVs: []TLV{{TypeSSL, unhex(t, row.value)}}}
			if got, ok := h.SSL(); got != row.want || ok != row.ok {
				t.Fatalf("%+v, %v", got, ok)
			}
		})
	}
	if _, ok := new(Header).SSL(); ok {
		t.Fatal("found what is not there")
	}
}

func TestTLSNames(t *testing.T) {
	for _, s := range append(tls.CipherSuites(), tls.InsecureCipherSuites()...) {
		got := CipherName(s.ID)
		if s.SupportedVersions[0] == tls.VersionTLS13 {
			if got != s.Name {
				t.Errorf("%s is named %s", s.Name, got)
			}
			continue
		}
		if want := opensslName(s.Name); got != want {
			t.Errorf("%s is named %s, want %s", s.Name, got, want)
		}
	}
	if got := CipherName(0x1305); got != "0x1305" {
		t.Errorf("an unknown suite is named %s", got)
	}
	for version, want := range map[uint16]string{
		tls.VersionTLS10: "TLSv1", tls.VersionTLS11: "TLSv1.1", tls.VersionTLS12: "TLSv1.2", tls.VersionTLS13: "TLSv1.3", 0x0305: "",
	} {
		if got := VersionName(version); got != want {
			t.Errorf("%#x is named %q", version, got)
		}
	}
}

// opensslName derives OpenSSL's spelling from the standard's: no TLS, RSA key
// exchange unsaid, "WITH", "CBC" and "128" glued or dropped.
func opensslName(name string) string {
	name = strings.NewReplacer("TLS_RSA_WITH_", "", "TLS_", "", "WITH_", "", "3DES_EDE_CBC_", "DES_CBC3_",
		"AES_128_", "AES128_", "AES_256_", "AES256_", "RC4_128_", "RC4_", "POLY1305_SHA256", "POLY1305").Replace(name)
	name = strings.NewReplacer("AES128_CBC_", "AES128_", "AES256_CBC_", "AES256_").Replace(name)
	return strings.ReplaceAll(name, "_", "-")
}

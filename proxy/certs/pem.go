package certs

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// minRSABits is the least with which crypto/rsa signs.
const minRSABits = 1024

// parse makes a certificate with its Leaf of the contents of the two files. One
// file may hold both. Its errors name the file that is at fault, and do not
// change while the contents do not: Watch tells them once.
func (p FilePair) parse(chainPEM, keyPEM []byte) (*tls.Certificate, error) {
	chain, err := parseChain(chainPEM)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", p.Certificate, err)
	}
	key, err := parseKey(keyPEM)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", p.Key, err)
	}
	leaf := chain[0]
	if !matches(leaf, key) {
		if slices.ContainsFunc(chain[1:], func(c *x509.Certificate) bool { return matches(c, key) }) {
			return nil, fmt.Errorf("%s: the certificate of the key in %s is not the first; put it before its intermediates", p.Certificate, p.Key)
		}
		return nil, fmt.Errorf("the key in %s does not belong to the certificate in %s; both must come from the same issuance", p.Key, p.Certificate)
	}
	if err := usable(leaf.PublicKey); err != nil {
		return nil, fmt.Errorf("%s: %w", p.Certificate, err)
	}
	cert := &tls.Certificate{PrivateKey: key, Leaf: leaf}
	for _, c := range chain {
		cert.Certificate = append(cert.Certificate, c.Raw)
	}
	return cert, nil
}

// decodePEM returns all blocks. pem.Decode passes over a damaged one in silence,
// and a chain without one of its intermediates works for some clients only.
func decodePEM(data []byte) ([]*pem.Block, error) {
	var blocks []*pem.Block
	for rest := data; ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		blocks = append(blocks, block)
	}
	switch begun := bytes.Count(data, []byte("-----BEGIN ")); {
	case begun > len(blocks):
		return nil, fmt.Errorf("of %d PEM blocks only %d can be read; the file is cut off or damaged, write it again", begun, len(blocks))
	case len(blocks) == 0:
		return nil, errors.New("holds no PEM block; it must be a text file with a -----BEGIN line")
	}
	return blocks, nil
}

func isKey(b *pem.Block) bool { return strings.HasSuffix(b.Type, "PRIVATE KEY") }

func parseChain(data []byte) ([]*x509.Certificate, error) {
	blocks, err := decodePEM(data)
	if err != nil {
		return nil, err
	}
	var chain []*x509.Certificate
	for _, block := range blocks {
		if block.Type != "CERTIFICATE" {
			continue
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("certificate %d in the file cannot be read: %w", len(chain)+1, err)
		}
		chain = append(chain, cert)
	}
	if len(chain) == 0 {
		if slices.ContainsFunc(blocks, isKey) {
			return nil, errors.New("holds a private key and no certificate; are the two files named the wrong way round?")
		}
		return nil, fmt.Errorf("holds no CERTIFICATE block, but %s", blocks[0].Type)
	}
	return chain, nil
}

func parseKey(data []byte) (crypto.Signer, error) {
	blocks, err := decodePEM(data)
	if err != nil {
		return nil, err
	}
	at := slices.IndexFunc(blocks, isKey)
	if at < 0 {
		return nil, fmt.Errorf("holds no private key, but %s", blocks[0].Type)
	}
	block := blocks[at]
	if block.Type == "ENCRYPTED PRIVATE KEY" || strings.Contains(block.Headers["Proc-Type"], "ENCRYPTED") {
		return nil, errors.New("the private key is encrypted, and nobody can be asked for its passphrase; store it decrypted (openssl pkey -in FILE -out NEWFILE), readable for this process alone")
	}
	if key, err := x509.ParsePKCS8PrivateKey(block.Bytes); err == nil {
		if signer, ok := key.(crypto.Signer); ok {
			return signer, nil
		}
		return nil, fmt.Errorf("a private key of type %T cannot sign; ECDSA, RSA and Ed25519 can", key)
	}
	if key, err := x509.ParseECPrivateKey(block.Bytes); err == nil {
		return key, nil
	}
	if key, err := x509.ParsePKCS1PrivateKey(block.Bytes); err == nil {
		return key, nil
	}
	// The parsers' own words are about the encodings that they expected.
	return nil, errors.New("the private key cannot be read; it must be PKCS #8, PKCS #1 or SEC 1 of an ECDSA, RSA or Ed25519 key")
}

func matches(cert *x509.Certificate, key crypto.Signer) bool {
	public, ok := cert.PublicKey.(interface{ Equal(crypto.PublicKey) bool })
	return ok && public.Equal(key.Public())
}

// usable refuses keys with which every handshake would fail.
func usable(public crypto.PublicKey) error {
	switch public := public.(type) {
	case *ecdsa.PublicKey:
		if c := public.Curve; c != elliptic.P256() && c != elliptic.P384() && c != elliptic.P521() {
			return fmt.Errorf("TLS has no signature for the curve %s; use P-256", c.Params().Name)
		}
	case *rsa.PublicKey:
		if bits := public.N.BitLen(); bits < minRSABits {
			return fmt.Errorf("an RSA key of %d bits is refused by TLS; use 2048 bits or more", bits)
		}
	}
	return nil
}

package wire

import (
	"crypto/ed25519"
	"crypto/sha256"
)

// The labels keep a signature for one purpose from being taken for another.
const (
	bundleLabel = "relaycore.v1 bundle\x00"
	proofLabel  = "relaycore.v1 proof\x00"
)

// BundleText is what the bundle's signature covers.
func BundleText(bundle []byte) []byte {
	return append([]byte(bundleLabel), bundle...)
}

// ProofText is what the proof of identity covers: the relay's nonce, the bundle
// and the TLS session. binding is the zero array where WELCOME asks for none.
func ProofText(nonce [32]byte, bundle []byte, binding [32]byte) []byte {
	hash := sha256.Sum256(bundle)
	text := make([]byte, 0, len(proofLabel)+96)
	text = append(append(text, proofLabel...), nonce[:]...)
	return append(append(text, hash[:]...), binding[:]...)
}

// NewPublish signs a PUBLISH.
func NewPublish(key ed25519.PrivateKey, bundle []byte, nonce, binding [32]byte) Publish {
	return Publish{
		Identity:        Identity(key.Public().(ed25519.PublicKey)),
		Bundle:          bundle,
		BundleSignature: [64]byte(ed25519.Sign(key, BundleText(bundle))),
		Proof:           [64]byte(ed25519.Sign(key, ProofText(nonce, bundle, binding))),
	}
}

// Verify reports whether both signatures are the identity's.
func (f *Publish) Verify(nonce, binding [32]byte) bool {
	key := ed25519.PublicKey(f.Identity[:])
	return ed25519.Verify(key, BundleText(f.Bundle), f.BundleSignature[:]) &&
		ed25519.Verify(key, ProofText(nonce, f.Bundle, binding), f.Proof[:])
}

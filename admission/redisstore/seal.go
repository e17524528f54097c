package redisstore

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"errors"
	"fmt"
)

// ErrSealed says that a record of the store cannot be opened: it was sealed by
// another secret, or is none of ours, or was put under another name.
var ErrSealed = errors.New("a record was not sealed by the secret of redis.secret_file, or not under its name; " +
	"have all edges use one secret, or else remove what is stored")

// sealer seals records, so that whoever reads the store's memory or its files
// learns nothing of them, and whoever writes there can neither make one nor put
// one in another's place. To put an older record of the same name back is possible,
// and so is to remove one.
type sealer struct{ aead cipher.AEAD }

const (
	// sealVersion is the first byte of what is stored.
	sealVersion = 1
	nonceBytes  = 12
	// headBytes are the version and the nonce, which no two sealings share: they
	// tell one state of a record from another.
	headBytes = 1 + nonceBytes
	// sealBytes are what sealing adds: the head and the tag.
	sealBytes = headBytes + 16
)

// newSealer derives the key from the secret that all edges share.
func newSealer(secret []byte) (*sealer, error) {
	key, err := hkdf.Key(sha256.New, secret, nil, "relayedge: records in the store, AES-256-GCM", 32)
	if err != nil {
		return nil, fmt.Errorf("redisstore: HKDF: %w", err)
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, fmt.Errorf("redisstore: AES: %w", err)
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		return nil, fmt.Errorf("redisstore: GCM: %w", err)
	}
	return &sealer{aead}, nil
}

// seal returns value as it is stored at key.
func (s *sealer) seal(key string, value []byte) []byte {
	sealed := make([]byte, 1, sealBytes+len(value))
	sealed[0] = sealVersion
	return s.aead.Seal(sealed, nil, value, []byte(key))
}

// open returns what was sealed for key.
func (s *sealer) open(key string, sealed []byte) ([]byte, error) {
	if len(sealed) < sealBytes || sealed[0] != sealVersion {
		return nil, ErrSealed
	}
	value, err := s.aead.Open(nil, nil, sealed[1:], []byte(key))
	if err != nil {
		return nil, ErrSealed
	}
	return value, nil
}

// head tells one sealing from another.
func head(sealed []byte) string { return string(sealed[:min(len(sealed), headBytes)]) }

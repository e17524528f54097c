package mailbox

import (
	"bytes"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"runtime"

	"golang.org/x/crypto/chacha20poly1305"

	"relayedge/internal/plainfile"
)

// Key is what a mailbox file is encrypted with.
type Key [32]byte

// maxKeyFile is the longest key file that is read.
const maxKeyFile = 4 << 10

// ReadKey reads a key file: 64 hexadecimal digits, with white space around them
// allowed and nothing else. It must be a regular file that its owner and at most
// its group can read, and its owner alone can write. No error tells what is in it.
func ReadKey(path string) (key Key, err error) {
	f, err := plainfile.Open(path)
	switch {
	case errors.Is(err, plainfile.ErrKind):
		return Key{}, fmt.Errorf("key file: %s is no regular file", path)
	case err != nil:
		return Key{}, fmt.Errorf("key file: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return Key{}, fmt.Errorf("key file: %w", err)
	}
	if mode := info.Mode().Perm(); mode&0o027 != 0 && runtime.GOOS != "windows" {
		return Key{}, fmt.Errorf("key file: %s has mode %04o, so others can read it or its group can change it; chmod 600 it", path, mode)
	}
	text, err := io.ReadAll(io.LimitReader(f, maxKeyFile+1))
	if err != nil {
		return Key{}, fmt.Errorf("key file: %w", err)
	}
	text = bytes.TrimSpace(text)
	if len(text) != hex.EncodedLen(len(key)) {
		return Key{}, fmt.Errorf("key file: %s holds %d characters in place of 64 hexadecimal digits; openssl rand -hex 32 makes a key", path, len(text))
	}
	if _, err := hex.Decode(key[:], text); err != nil {
		return Key{}, fmt.Errorf("key file: %s holds characters that are no hexadecimal digits", path)
	}
	if key == (Key{}) {
		return Key{}, fmt.Errorf("key file: %s is all zeros, which is no key", path)
	}
	return key, nil
}

// ErrWrongKey says that a file was written with another key. The file is untouched.
var ErrWrongKey = errors.New("the key is not the one that this file was written with")

// saltSize is the length of what makes the keys of a file its own.
const saltSize = 32

// sealer encrypts and decrypts one file's records.
type sealer struct {
	records recordCipher
	names   []byte // key of the pseudonyms of sources
}

func newSealer(key Key, salt []byte) (*sealer, error) {
	derive := func(what string) ([]byte, error) {
		return hkdf.Key(sha256.New, key[:], salt, "relaycore mailbox 1 "+what, chacha20poly1305.KeySize)
	}
	record, err := derive("records")
	if err != nil {
		return nil, err
	}
	names, err := derive("sources")
	if err != nil {
		return nil, err
	}
	aead, err := chacha20poly1305.NewX(record)
	if err != nil {
		return nil, err
	}
	return &sealer{recordCipher{aead}, names}, nil
}

// pseudonym stands for a source in the file and, so that it is the same one
// after a restart, in the ledger: its keyed hash, in the form of an address.
func (s *sealer) pseudonym(source netip.Prefix) netip.Prefix {
	text, _ := source.MarshalBinary() // never fails
	mac := hmac.New(sha256.New, s.names)
	mac.Write(text)
	return prefixOf([16]byte(mac.Sum(nil)))
}

func prefixOf(pseudonym [16]byte) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom16(pseudonym), 128)
}

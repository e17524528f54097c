package mailbox

import (
	"crypto/cipher"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"time"

	"relayedge/relaycore/wire"
)

// A record of the file is a random nonce of 24 bytes and the sealed message. Its
// key is its seq, which is its additional data too: a record holds in its own
// place only. Nonces of that length may be random for any number of records.
//
//	1  version of the record: 1
//	1  flags: bit 0 the sender is a contact
//	8  when it was put: Unix time in nanoseconds
//	16 pseudonym of the sender's source
//	32 recipient
//	32 sender
//	32 message id
//	n  payload
type record struct {
	contact   bool
	put       time.Time
	source    [16]byte
	recipient wire.Identity
	sender    wire.Identity
	id        wire.MessageID
	payload   []byte
}

const (
	recordVersion = 1
	recordHead    = 1 + 1 + 8 + 16 + 3*32
	flagContact   = 1
)

var errRecord = errors.New("a record does not decrypt: it was damaged or is not in its place")

func randomSalt() []byte {
	salt := make([]byte, saltSize)
	rand.Read(salt) // never fails
	return salt
}

func recordKey(seq uint64) []byte { return binary.BigEndian.AppendUint64(nil, seq) }

// recordCipher seals records.
type recordCipher struct{ aead cipher.AEAD }

func (c recordCipher) seal(seq uint64, r *record) []byte {
	nonce := c.aead.NonceSize()
	plain := make([]byte, 0, recordHead+len(r.payload))
	var flags byte
	if r.contact {
		flags = flagContact
	}
	plain = append(plain, recordVersion, flags)
	plain = binary.BigEndian.AppendUint64(plain, uint64(r.put.UnixNano()))
	plain = append(append(plain, r.source[:]...), r.recipient[:]...)
	plain = append(append(plain, r.sender[:]...), r.id[:]...)
	plain = append(plain, r.payload...)
	out := make([]byte, nonce, nonce+len(plain)+c.aead.Overhead())
	rand.Read(out)
	return c.aead.Seal(out, out, plain, recordKey(seq))
}

// open decrypts what is at the place seq into scratch, to which the payload then refers.
func (c recordCipher) open(scratch []byte, seq uint64, sealed []byte) (r record, plain []byte, err error) {
	nonce := c.aead.NonceSize()
	if len(sealed) < nonce {
		return record{}, scratch, errRecord
	}
	plain, err = c.aead.Open(scratch[:0], sealed[:nonce], sealed[nonce:], recordKey(seq))
	if err != nil || len(plain) < recordHead || plain[0] != recordVersion {
		return record{}, scratch, errRecord
	}
	r.contact = plain[1]&flagContact != 0
	r.put = time.Unix(0, int64(binary.BigEndian.Uint64(plain[2:])))
	r.source = [16]byte(plain[10:])
	r.recipient = wire.Identity(plain[26:])
	r.sender = wire.Identity(plain[58:])
	r.id = wire.MessageID(plain[90:])
	r.payload = plain[recordHead:]
	return r, plain, nil
}

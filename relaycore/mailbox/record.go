package mailbox

import (
	"bytes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"slices"
	"time"

	"go.etcd.io/bbolt"

	"relayedge/relaycore/wire"
)

// A record of the file is a random nonce of 24 bytes and the sealed message. Its
// place is its seq, which is its additional data too: a record holds in its own
// place only. Nonces of that length may be random for any number of records.
//
// It is cut into parts of which two fill a page of the database: a page then never
// has a tail, so that no change copies long neighbours, and even on a full disk a
// few single pages are enough to take something out. The key of a part is the seq
// in 8 bytes and the part's number in 2.
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

// partSize is the length of a part, the last one aside.
const partSize = 2000

func place(seq uint64) []byte { return binary.BigEndian.AppendUint64(nil, seq) }

func partKey(seq uint64, part int) []byte {
	return binary.BigEndian.AppendUint16(place(seq), uint16(part))
}

// putRecord writes a sealed record.
func putRecord(b *bbolt.Bucket, seq uint64, sealed []byte) error {
	part := 0
	for piece := range slices.Chunk(sealed, partSize) {
		if err := b.Put(partKey(seq, part), piece); err != nil {
			return err
		}
		part++
	}
	return nil
}

// deleteRecord takes a record out, if it is there.
func deleteRecord(b *bbolt.Bucket, seq uint64) error {
	at := place(seq)
	for c := b.Cursor(); ; {
		k, _ := c.Seek(at)
		if !bytes.HasPrefix(k, at) {
			return nil
		}
		if err := b.Delete(k); err != nil {
			return err
		}
	}
}

// appendRecord appends the sealed record at the cursor, and moves it behind it.
// Parts that are missing or in disorder make a record that does not decrypt.
func appendRecord(dst []byte, c *bbolt.Cursor, k, v []byte) (sealed, nextKey, nextPart []byte) {
	at := k[:min(8, len(k))]
	for bytes.HasPrefix(k, at) && k != nil {
		dst = append(dst, v...)
		k, v = c.Next()
	}
	return dst, k, v
}

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
	return c.aead.Seal(out, out, plain, place(seq))
}

// open decrypts what is at the place seq into scratch, to which the payload then refers.
func (c recordCipher) open(scratch []byte, seq uint64, sealed []byte) (r record, plain []byte, err error) {
	nonce := c.aead.NonceSize()
	if len(sealed) < nonce {
		return record{}, scratch, errRecord
	}
	plain, err = c.aead.Open(scratch[:0], sealed[:nonce], sealed[nonce:], place(seq))
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

package mailbox

import (
	"bytes"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func newTestSealer(t failer, key Key, salt string) *sealer {
	s, err := newSealer(key, []byte(salt))
	if err != nil {
		t.Fatalf("%v", err)
	}
	return s
}

type failer interface{ Fatalf(string, ...any) }

// A record comes back in its own place and nowhere else, as it was and not otherwise.
func TestRecord(t *testing.T) {
	s := newTestSealer(t, testKey, "salt")
	rapid.Check(t, func(t *rapid.T) {
		r := record{
			contact: rapid.Bool().Draw(t, "contact"),
			put:     time.Unix(0, rapid.Int64().Draw(t, "put")),
			payload: rapid.SliceOfN(rapid.Byte(), 0, 300).Draw(t, "payload"),
		}
		for _, part := range [][]byte{r.source[:], r.recipient[:], r.sender[:], r.id[:]} {
			copy(part, rapid.SliceOfN(rapid.Byte(), len(part), len(part)).Draw(t, "part"))
		}
		seq := rapid.Uint64().Draw(t, "seq")
		sealed := s.records.seal(seq, &r)
		got, _, err := s.records.open(nil, seq, sealed)
		if err != nil || got.contact != r.contact || !got.put.Equal(r.put) || got.source != r.source || got.recipient != r.recipient ||
			got.sender != r.sender || got.id != r.id || !bytes.Equal(got.payload, r.payload) {
			t.Fatalf("%+v, %v, want %+v", got, err, r)
		}
		refuse := func(what string, seq uint64, sealed []byte) {
			if _, _, err := s.records.open(nil, seq, sealed); err == nil {
				t.Fatalf("%s is taken", what)
			}
		}
		refuse("another place", seq+1, sealed)
		refuse("a cut record", seq, sealed[:rapid.IntRange(0, len(sealed)-1).Draw(t, "cut")])
		refuse("a longer record", seq, append(bytes.Clone(sealed), 0))
		flipped := bytes.Clone(sealed)
		flipped[rapid.IntRange(0, len(sealed)-1).Draw(t, "byte")] ^= 1 << rapid.IntRange(0, 7).Draw(t, "bit")
		refuse("a flipped bit", seq, flipped)
		if again := s.records.seal(seq, &r); bytes.Equal(again, sealed) {
			t.Fatalf("one nonce serves twice")
		}
	})
}

// Each file has keys of its own, from one key.
func TestSealersDiffer(t *testing.T) {
	a := newTestSealer(t, testKey, "salt")
	r := record{put: start, payload: []byte("x")}
	for name, b := range map[string]*sealer{
		"another salt": newTestSealer(t, testKey, "pepper"),
		"another key":  newTestSealer(t, Key{9}, "salt"),
	} {
		if _, _, err := b.records.open(nil, 1, a.records.seal(1, &r)); err == nil {
			t.Errorf("%s opens the record", name)
		}
		if a.pseudonym(source(1)) == b.pseudonym(source(1)) {
			t.Errorf("%s gives the same pseudonym", name)
		}
	}
	if a.pseudonym(source(1)) == a.pseudonym(source(2)) || a.pseudonym(source(1)) != newTestSealer(t, testKey, "salt").pseudonym(source(1)) {
		t.Error("a pseudonym does not stand for one source")
	}
}

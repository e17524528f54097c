package api

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"slices"
	"time"

	"relayedge/relaycore/wire"
)

// Sizes of bodies in bytes.
const (
	MaxMessageBody = 96 << 10 // of POST /messages: wire.MaxBody in base64 is 87,384
	MaxOtherBody   = 32 << 10 // of the others: wire.MaxAckIDs ids, or wire.MaxBundle in base64
)

// object is a JSON object that is read field by field, as its bytes come. Names
// are compared with their case. A field that nobody asks for is skipped, also
// where it comes twice; one that is asked for may come once.
type object struct {
	names  []string // asked for
	dec    *json.Decoder
	fields map[string]json.RawMessage
	twice  string // a field that has come again

	wrong *reply // the first field that was asked for and is not what it must be
}

// The faults of bodies.
var (
	errObject = errors.New("the body is no JSON object")
	errBehind = errors.New("something stands behind the JSON object")
)

// open begins to read the body, of at most most bytes.
func (q *request) open(most int64, names ...string) (*object, *reply) {
	if kind, _, err := mime.ParseMediaType(q.Header.Get("Content-Type")); err != nil || kind != "application/json" {
		return nil, refuse(MediaType, "the body must be application/json")
	}
	if encodings := q.Header["Content-Encoding"]; len(encodings) > 0 && !slices.Equal(encodings, []string{"identity"}) {
		return nil, refuse(MediaType, "the body must not be compressed")
	}
	if q.ContentLength > most {
		q.body.Header().Set("Connection", "close")
		return nil, refuse(TooLarge, "the body is longer than %d bytes", most)
	}
	o := &object{names: names, dec: json.NewDecoder(http.MaxBytesReader(q.body, q.Body, most)), fields: make(map[string]json.RawMessage, len(names))}
	if t, err := o.dec.Token(); err != nil {
		return nil, broken(err)
	} else if t != json.Delim('{') {
		return nil, broken(errObject)
	}
	return o, nil
}

// broken is the answer to a body that cannot be read.
func broken(err error) *reply {
	if large, is := errors.AsType[*http.MaxBytesError](err); is {
		return refuse(TooLarge, "the body is longer than %d bytes", large.Limit)
	}
	if err == errBehind {
		return refuse(BadRequest, "%v", err)
	}
	return refuse(BadRequest, "%v", errObject)
}

// skipped is a value that is not kept.
type skipped struct{}

func (*skipped) UnmarshalJSON([]byte) error { return nil }

// until reads fields until the named one has come, or to the end without a name.
func (o *object) until(name string) *reply {
	for o.fields[name] == nil && o.dec.More() {
		t, err := o.dec.Token()
		if err != nil {
			return broken(err)
		}
		key, _ := t.(string) // which a name in an object always is
		if !slices.Contains(o.names, key) || o.fields[key] != nil {
			if o.fields[key] != nil {
				o.twice = key
			}
			if err := o.dec.Decode(new(skipped)); err != nil {
				return broken(err)
			}
			continue
		}
		var value json.RawMessage
		if err := o.dec.Decode(&value); err != nil {
			return broken(err)
		}
		o.fields[key] = value
	}
	if o.fields[name] != nil {
		return nil
	}
	if t, err := o.dec.Token(); err != nil || t != json.Delim('}') {
		return broken(err)
	}
	if name != "" {
		return refuse(BadRequest, "%s is missing", name)
	}
	switch _, err := o.dec.Token(); {
	case err == nil:
		return broken(errBehind)
	case err != io.EOF:
		if _, is := errors.AsType[*http.MaxBytesError](err); !is {
			err = errBehind
		}
		return broken(err)
	case o.twice != "":
		return refuse(BadRequest, "%s stands there twice", o.twice)
	}
	return nil
}

// fail notes what is wrong, unless something was before.
func (o *object) fail(word Word, format string, args ...any) {
	if o.wrong == nil {
		o.wrong = refuse(word, format, args...)
	}
}

// text is a field that must be a string.
func (o *object) text(name string) (s string) {
	if value, there := o.fields[name]; !there {
		o.fail(BadRequest, "%s is missing", name)
	} else if value[0] != '"' || json.Unmarshal(value, &s) != nil {
		o.fail(BadRequest, "%s must be a string", name)
	}
	return s
}

// hexDigits is a field of 32 bytes in lower-case hex.
func (o *object) hexDigits(name string) [32]byte {
	var b wire.MessageID
	if b.UnmarshalText([]byte(o.text(name))) != nil {
		o.fail(BadRequest, notHex, name)
	}
	return b
}

const notHex = "%s must be 64 lower-case hexadecimal digits"

// hexList is a field that is a list of message ids, one to wire.MaxAckIDs.
func (o *object) hexList(name string) []wire.MessageID {
	value, there := o.fields[name]
	if !there {
		o.fail(BadRequest, "%s is missing", name)
		return nil
	}
	var texts []*string
	if err := json.Unmarshal(value, &texts); err != nil || len(texts) == 0 || len(texts) > wire.MaxAckIDs || slices.Contains(texts, nil) {
		o.fail(BadRequest, "%s must be a list of 1 to %d strings", name, wire.MaxAckIDs)
		return nil
	}
	ids := make([]wire.MessageID, len(texts))
	for i, s := range texts {
		if ids[i].UnmarshalText([]byte(*s)) != nil {
			o.fail(BadRequest, notHex, name)
		}
	}
	return ids
}

// bytes is a field in padded base64, of at most most bytes.
func (o *object) bytes(name string, most int) []byte {
	b, ok := parseBase64(o.text(name))
	if !ok {
		o.fail(BadRequest, notBase64, name)
	}
	if len(b) > most {
		o.fail(TooLarge, "%s is longer than %d bytes", name, most)
	}
	return b
}

const notBase64 = "%s must be padded base64"

// parseBase64 reads padded base64. There is one way to write it: the package
// would skip the ends of lines.
func parseBase64(s string) ([]byte, bool) {
	b, err := base64.StdEncoding.Strict().DecodeString(s)
	return b, err == nil && base64.StdEncoding.EncodedLen(len(b)) == len(s)
}

// signature is a field of 64 bytes in base64.
func (o *object) signature(name string) (b [64]byte) {
	all, ok := parseBase64(o.text(name))
	if !ok || len(all) != len(b) {
		o.fail(BadRequest, notSignature, name)
		return b
	}
	return [64]byte(all)
}

const notSignature = "%s must be 64 bytes in padded base64"

// maxMoment is the longest sent_at: one with nanoseconds and an offset.
const maxMoment = len("2026-03-28T12:01:00.123456789+00:00")

// moment is a field with a time. The text is what is signed.
func (o *object) moment(name string) (text string, at time.Time) {
	text = o.text(name)
	at, err := time.Parse(time.RFC3339, text) // which takes a fraction too
	if err != nil || len(text) > maxMoment {
		o.fail(BadRequest, "%s must be a time as in 2026-03-28T12:01:00Z", name)
	}
	return text, at
}

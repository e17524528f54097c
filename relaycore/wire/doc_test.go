package wire

import (
	"bytes"
	"encoding/hex"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// example is a block of docs/protocol.md: ```hex NAME.
var example = regexp.MustCompile("(?ms)^```hex ([A-Z_]+)\n(.*?)^```$")

// repeated is the document's way of writing many equal bytes: 00×12.
var repeated = regexp.MustCompile(`^([0-9a-f]{2})×([0-9]+)$`)

// unhex reads an example's bytes.
func unhex(t *testing.T, text string) (b []byte) {
	t.Helper()
	for word := range strings.FieldsSeq(text) {
		if m := repeated.FindStringSubmatch(word); m != nil {
			one, _ := hex.DecodeString(m[1])
			n, _ := strconv.Atoi(m[2])
			b = append(b, bytes.Repeat(one, n)...)
			continue
		}
		x, err := hex.DecodeString(word)
		if err != nil {
			t.Fatalf("%q: %v", word, err)
		}
		b = append(b, x...)
	}
	return b
}

// Every frame has one worked example in docs/protocol.md, which is that frame;
// the PUBLISH is good for the WELCOME and a channel binding of 32 bytes 0xcb.
func TestDocument(t *testing.T) {
	doc, err := os.ReadFile("../../docs/protocol.md")
	if err != nil {
		t.Fatal(err)
	}
	frames := make(map[Type]Frame)
	for _, m := range example.FindAllSubmatch(doc, -1) {
		name, b := string(m[1]), unhex(t, string(m[2]))
		decode := DecodeClient
		if b[0]&0x80 != 0 {
			decode = DecodeServer
		}
		f, err := decode(b)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if f.Type().String() != name {
			t.Errorf("the example of %s is a %v", name, f.Type())
		}
		if frames[f.Type()] != nil {
			t.Errorf("%s has two examples", name)
		}
		if !bytes.Equal(f.Append(nil), b) {
			t.Errorf("%s comes back as %x", name, f.Append(nil))
		}
		frames[f.Type()] = f
	}
	for typ, name := range typeNames {
		if frames[typ] == nil {
			t.Errorf("%s has no example", name)
		}
		if row := "| `" + name + "` | `0x" + strconv.FormatUint(uint64(typ), 16) + "` |"; typ >= 0x80 && !bytes.Contains(doc, []byte(row)) {
			t.Errorf("the table has no row %s", row)
		}
	}
	for limit, key := range limitKeys {
		if row := "| " + strconv.Itoa(int(limit)) + " | `" + key + "`"; !bytes.Contains(doc, []byte(row)) {
			t.Errorf("the table of limits has no row %s", row)
		}
	}
	if t.Failed() {
		return
	}
	publish := frames[TypePublish].(Publish)
	if !publish.Verify(frames[TypeWelcome].(Welcome).Nonce, [32]byte(bytes.Repeat([]byte{0xcb}, 32))) {
		t.Error("the signatures of the PUBLISH do not hold")
	}
	if frames[TypePublished].(Published).Identity != publish.Identity {
		t.Error("PUBLISHED names another identity")
	}
}

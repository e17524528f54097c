package wire

import (
	"bytes"
	"crypto/ed25519"
	"encoding/hex"
	"os"
	"regexp"
	"strings"
	"testing"
)

var (
	signer    = ed25519.NewKeyFromSeed(bytes.Repeat([]byte{1}, 32))
	alice     = Identity(signer.Public().(ed25519.PublicKey))
	bob       = Identity(ed25519.NewKeyFromSeed(bytes.Repeat([]byte{2}, 32)).Public().(ed25519.PublicKey))
	messageID = MessageID(append(append([]byte{0xc0, 0xff, 0xee}, make([]byte, 28)...), 0xff))
)

// signedTexts are the examples of docs/protocol.md, by the names that they have there.
func signedTexts() map[string][]byte {
	const sentAt = "2026-03-28T12:00:00Z"
	return map[string][]byte{
		"message":   MessageText(messageID, alice, bob, sentAt, []byte("hello")),
		"acks":      AcksText(alice, []MessageID{messageID}, sentAt),
		"mailbox":   MailboxText(alice, "nonce"),
		"identity":  IdentityText(alice, []byte("bundle"), sentAt),
		"push":      PushText(alice, "https://push.example.org/up", sentAt),
		"push off":  PushOffText(alice, sentAt),
		"push test": PushTestText(alice, sentAt),
	}
}

// Each signed text has one worked example in docs/protocol.md, with its signature.
func TestSignedDocument(t *testing.T) {
	doc, err := os.ReadFile("../../docs/protocol.md")
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	for _, m := range regexp.MustCompile("(?ms)^```hex (signed|signature) ([a-z ]+)\n(.*?)^```$").FindAllSubmatch(doc, -1) {
		kind, name := string(m[1]), string(m[2])
		got, want := unhex(t, string(m[3])), signedTexts()[name]
		if kind == "signature" {
			want = ed25519.Sign(signer, want)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("the %s of %s is %x", kind, name, want)
		}
		found[kind+name] = true
	}
	for name := range signedTexts() {
		if !found["signed"+name] || !found["signature"+name] {
			t.Errorf("%s has no example with its signature", name)
		}
	}
}

// A signature for one purpose is none for another, and none of the labels is the
// beginning of another text.
func TestSignedPurposes(t *testing.T) {
	texts := signedTexts()
	texts["bundle"] = BundleText([]byte("bundle"))
	texts["proof"] = ProofText([32]byte{}, []byte("bundle"), [32]byte{})
	labels := map[string]string{}
	for name, text := range texts {
		label, _, ok := bytes.Cut(text, []byte{0})
		if !ok || !strings.HasPrefix(string(label), Subprotocol+" ") {
			t.Errorf("%s begins with %q", name, label)
		}
		if other := labels[string(label)]; other != "" {
			t.Errorf("%s and %s have one label", name, other)
		}
		labels[string(label)] = name
	}
}

// What differs anywhere is another text: a byte that moves from one field to the
// next as much as one that changes.
func TestSignedFields(t *testing.T) {
	const at = "2026-03-28T12:00:00Z"
	other := MessageID{1}
	seen := map[string]string{}
	for name, text := range map[string][]byte{
		"message":                MessageText(messageID, alice, bob, at, []byte("hello")),
		"message id":             MessageText(other, alice, bob, at, []byte("hello")),
		"message sides":          MessageText(messageID, bob, alice, at, []byte("hello")),
		"message recipient":      MessageText(messageID, alice, alice, at, []byte("hello")),
		"message moved byte":     MessageText(messageID, alice, bob, at+"h", []byte("ello")),
		"message spelling":       MessageText(messageID, alice, bob, "2026-03-28T12:00:00.0Z", []byte("hello")),
		"message body":           MessageText(messageID, alice, bob, at, []byte("hellp")),
		"acks":                   AcksText(alice, []MessageID{messageID, other}, at),
		"acks order":             AcksText(alice, []MessageID{other, messageID}, at),
		"acks fewer":             AcksText(alice, []MessageID{messageID}, at),
		"acks none":              AcksText(alice, nil, at),
		"acks time":              AcksText(alice, []MessageID{messageID, other}, "2026-03-28T12:00:01Z"),
		"acks sender":            AcksText(bob, []MessageID{messageID, other}, at),
		"mailbox":                MailboxText(alice, "nonce"),
		"mailbox nonce":          MailboxText(alice, "noncf"),
		"mailbox identity":       MailboxText(bob, "nonce"),
		"identity":               IdentityText(alice, []byte("bundle"), at),
		"identity moved byte":    IdentityText(alice, []byte("bundle2"), at[1:]),
		"identity time":          IdentityText(alice, []byte("bundle"), "2026-03-28T12:00:01Z"),
		"identity of another":    IdentityText(bob, []byte("bundle"), at),
		"push":                   PushText(alice, "https://a.example/", at),
		"push moved byte":        PushText(alice, "https://a.example/2", at[1:]),
		"push of another":        PushText(bob, "https://a.example/", at),
		"push off":               PushOffText(alice, at),
		"push off of another":    PushOffText(bob, at),
		"push off at other time": PushOffText(alice, "2026-03-28T12:00:01Z"),
		"push test":              PushTestText(alice, at),
		"push test of another":   PushTestText(bob, at),
	} {
		if before, ok := seen[string(text)]; ok {
			t.Errorf("%s and %s are one text", before, name)
		}
		seen[string(text)] = name
	}
}

func TestSigned(t *testing.T) {
	text := MailboxText(alice, "nonce")
	good := ed25519.Sign(signer, text)
	bent := bytes.Clone(good)
	bent[0] ^= 1
	for _, row := range []struct {
		name      string
		who       Identity
		text      []byte
		signature []byte
		want      bool
	}{
		{"good", alice, text, good, true},
		{"another's", bob, text, good, false},
		{"another text", alice, MailboxText(alice, "other"), good, false},
		{"bent", alice, text, bent, false},
		{"none", alice, text, nil, false},
		{"short", alice, text, good[:63], false},
		{"long", alice, text, append(bytes.Clone(good), 0), false},
	} {
		if Signed(row.who, row.text, row.signature) != row.want {
			t.Errorf("%s: %s", row.name, hex.EncodeToString(row.signature))
		}
	}
}

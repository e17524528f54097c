package wire

import (
	"crypto/ed25519"
	"encoding/binary"
)

// The labels of what is signed over HTTP. None is the beginning of another, nor
// of those of PUBLISH.
const (
	messageLabel  = "relaycore.v1 message\x00"
	acksLabel     = "relaycore.v1 acks\x00"
	mailboxLabel  = "relaycore.v1 mailbox\x00"
	identityLabel = "relaycore.v1 identity\x00"
	pushLabel     = "relaycore.v1 push\x00"
	pushOffLabel  = "relaycore.v1 push off\x00"
	pushTestLabel = "relaycore.v1 push test\x00"
)

// signedText is a label and the fields behind it, each behind its length in four
// bytes, so that no two lists of fields give the same text.
func signedText(label string, fields ...[]byte) []byte {
	size := len(label)
	for _, f := range fields {
		size += 4 + len(f)
	}
	text := append(make([]byte, 0, size), label...)
	for _, f := range fields {
		text = append(binary.BigEndian.AppendUint32(text, uint32(len(f))), f...)
	}
	return text
}

// MessageText is what the sender's signature of a message over HTTP covers.
// sentAt is the text that the request carries, to the letter, and body the bytes
// that its base64 stands for.
func MessageText(id MessageID, sender, recipient Identity, sentAt string, body []byte) []byte {
	return signedText(messageLabel, id[:], sender[:], recipient[:], []byte(sentAt), body)
}

// AcksText is what the signature of the sender of acknowledgements covers: the
// recipient of the messages, and their ids in the order in which the request has
// them.
func AcksText(sender Identity, ids []MessageID, sentAt string) []byte {
	all := make([]byte, 0, len(ids)*len(MessageID{}))
	for _, id := range ids {
		all = append(all, id[:]...)
	}
	return signedText(acksLabel, sender[:], all, []byte(sentAt))
}

// MailboxText is what the signature of who reads a mailbox covers. nonce is the
// challenge as the relay gave it, to the letter.
func MailboxText(identity Identity, nonce string) []byte {
	return signedText(mailboxLabel, identity[:], []byte(nonce))
}

// IdentityText is what the second signature of a bundle that is published over
// HTTP covers; the first is the one over [BundleText], which goes to whoever asks
// for the bundle and so proves nothing about who brings it, nor when.
func IdentityText(identity Identity, bundle []byte, sentAt string) []byte {
	return signedText(identityLabel, identity[:], bundle, []byte(sentAt))
}

// PushText is what the signature of who leaves a push endpoint covers.
func PushText(identity Identity, endpoint, sentAt string) []byte {
	return signedText(pushLabel, identity[:], []byte(endpoint), []byte(sentAt))
}

// PushOffText is what the signature of who takes the push endpoint back covers.
func PushOffText(identity Identity, sentAt string) []byte {
	return signedText(pushOffLabel, identity[:], []byte(sentAt))
}

// PushTestText is what the signature of who tries the push endpoint covers.
func PushTestText(identity Identity, sentAt string) []byte {
	return signedText(pushTestLabel, identity[:], []byte(sentAt))
}

// Signed reports whether a signature over text is the identity's. One of another
// length than 64 bytes is not.
func Signed(identity Identity, text, signature []byte) bool {
	return len(signature) == ed25519.SignatureSize && ed25519.Verify(identity[:], text, signature)
}

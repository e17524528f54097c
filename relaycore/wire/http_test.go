package wire

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
)

// There is one way to write an identity and a message id (docs/protocol.md, The HTTP API).
func TestTexts(t *testing.T) {
	want := strings.Repeat("0a", 31) + "ff"
	var id Identity
	var message MessageID
	if err := errors.Join(id.UnmarshalText([]byte(want)), message.UnmarshalText([]byte(want))); err != nil {
		t.Fatal(err)
	}
	if id.String() != want || message.String() != want || id[31] != 0xff {
		t.Errorf("%v %v", id, message)
	}
	b, err := json.Marshal(Waiting{ID: message, Sender: id, Body: []byte("x")})
	if got := string(b); err != nil || got != `{"id":"`+want+`","sender":"`+want+`","body":"eA=="}` {
		t.Errorf("%s %v", got, err)
	}
	for _, text := range []string{"", "0a", want[2:], want + "00", strings.ToUpper(want), strings.Repeat("x", 64), " " + want[1:], strings.Repeat("ı", 32)} {
		if !errors.Is(id.UnmarshalText([]byte(text)), ErrText) || !errors.Is(message.UnmarshalText([]byte(text)), ErrText) {
			t.Errorf("%q was taken", text)
		}
	}
}

func TestIsIdempotencyKey(t *testing.T) {
	for key, ok := range map[string]bool{
		"a": true, "!~": true, strings.Repeat("k", 255): true,
		"": false, strings.Repeat("k", 256): false, "a b": false, "\x7f": false, "\x00": false, "a\r\nb": false, "ü": false,
	} {
		if IsIdempotencyKey(key) != ok {
			t.Errorf("%q: %v", key, !ok)
		}
	}
}

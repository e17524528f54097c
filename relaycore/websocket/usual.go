package websocket

import (
	"bytes"
	"encoding/base64"
)

// A field's place among those that an upgrade needs once.
const (
	fieldHost = iota
	fieldUpgrade
	fieldConnection
	fieldVersion
	fieldKey
	fieldsNeeded
)

// usual answers the upgrade request that nearly every client sends, without the
// memory that http.ReadRequest takes: of all that an idle session costs, the
// request was most. It takes nothing that Judge would refuse by itself, and reports
// false for whatever is not plainly right: another path or method, a body, a line
// that is missing, doubled or strange. head has passed ambiguous.
func (e Endpoint) usual(head []byte) (a Answer, ok bool) {
	line, rest := cutLine(head)
	line, got := bytes.CutPrefix(line, []byte("GET "))
	if !got || !bytes.HasPrefix(line, []byte(e.Path)) || string(line[len(e.Path):]) != " HTTP/1.1" {
		return Answer{}, false
	}
	var values [fieldsNeeded][]byte
	var seen [fieldsNeeded]bool
	offered, selected := false, false
	for len(rest) > 0 {
		line, rest = cutLine(rest)
		if len(line) == 0 {
			break
		}
		name, value, colon := bytes.Cut(line, []byte(":"))
		if !colon || !token(name) {
			return Answer{}, false
		}
		value = bytes.Trim(value, " \t")
		at := fieldsNeeded
		switch len(name) { // most names are none of these by their length alone
		case len("Host"):
			at = fieldIf(name, "Host", fieldHost)
		case len("Upgrade"):
			if at = fieldIf(name, "Upgrade", fieldUpgrade); bytes.EqualFold(name, []byte("Trailer")) {
				return Answer{}, false
			}
		case len("Connection"):
			at = fieldIf(name, "Connection", fieldConnection)
		case len("Sec-WebSocket-Key"):
			if at = fieldIf(name, "Sec-WebSocket-Key", fieldKey); bytes.EqualFold(name, []byte("Transfer-Encoding")) {
				return Answer{}, false
			}
		case len("Sec-WebSocket-Version"):
			at = fieldIf(name, "Sec-WebSocket-Version", fieldVersion)
		case len("Content-Length"):
			if bytes.EqualFold(name, []byte("Content-Length")) {
				return Answer{}, false
			}
		case len("Sec-WebSocket-Protocol"):
			if bytes.EqualFold(name, []byte("Sec-WebSocket-Protocol")) {
				offered = true
				selected = selected || listed(value, e.Subprotocol)
			}
		}
		if at == fieldsNeeded {
			continue
		}
		if seen[at] {
			return Answer{}, false
		}
		values[at], seen[at] = value, true
	}
	key := values[fieldKey]
	var raw [18]byte // what 24 characters of base64 may stand for
	if len(values[fieldHost]) == 0 || !bytes.EqualFold(values[fieldUpgrade], []byte("websocket")) ||
		!bytes.EqualFold(values[fieldConnection], []byte("upgrade")) ||
		string(values[fieldVersion]) != "13" || len(key) != 24 || offered && !selected {
		return Answer{}, false
	}
	if n, err := base64.StdEncoding.Strict().Decode(raw[:], key); err != nil || n != 16 {
		return Answer{}, false
	}
	protocol := ""
	if selected {
		protocol = e.Subprotocol
	}
	return Answer{Response: switching(string(key), protocol), Upgraded: true}, true
}

// cutLine splits at the first CR LF.
func cutLine(b []byte) (line, rest []byte) {
	line, rest, _ = bytes.Cut(b, []byte("\r\n"))
	return line, rest
}

// fieldIf returns at if the name is that field's, in any case, and else no field.
func fieldIf(name []byte, field string, at int) int {
	if bytes.EqualFold(name, []byte(field)) {
		return at
	}
	return fieldsNeeded
}

// listed reports whether a comma-separated list holds the token, with its case.
func listed(list []byte, token string) bool {
	for t := range bytes.SplitSeq(list, []byte(",")) {
		if string(bytes.Trim(t, " \t")) == token {
			return true
		}
	}
	return false
}

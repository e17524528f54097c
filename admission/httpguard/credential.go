package httpguard

import (
	"net/http"
	"strings"
)

// credentialBytes is the longest credential; what is longer is none.
const credentialBytes = 4096

// credential returns the service key that a request names, without the blanks
// around it: the token of Authorization: Bearer, or X-Api-Key. Names of headers
// and the scheme are read in any case, the token to the letter. It returns "" if
// the request names none, or more than one: nobody gets several windows by naming
// several credentials, of which whoever authenticates would take another.
func credential(h http.Header) string {
	found := ""
	for _, value := range h["Authorization"] {
		value = trim(value)
		end := strings.IndexAny(value, blanks)
		if end < 0 || !strings.EqualFold(value[:end], "Bearer") {
			continue
		}
		if !settle(&found, trim(value[end:])) {
			return ""
		}
	}
	for _, value := range h["X-Api-Key"] {
		if !settle(&found, trim(value)) {
			return ""
		}
	}
	return found
}

// settle takes token for the credential, if it is one, and reports whether there
// is no other.
func settle(found *string, token string) bool {
	if token == "" {
		return true
	}
	if len(token) > credentialBytes || strings.ContainsFunc(token, unspeakable) || *found != "" && *found != token {
		return false
	}
	*found = token
	return true
}

// unspeakable reports what no header's value holds when it has come over HTTP.
func unspeakable(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }

// blanks are what HTTP allows around a value.
const blanks = " \t"

func trim(s string) string { return strings.Trim(s, blanks) }

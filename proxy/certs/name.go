package certs

import (
	"net/netip"
	"strings"
)

// Bounds of RFC 1035, section 2.3.4, in the textual form without a final dot.
const (
	MaxNameLen  = 253
	maxLabelLen = 63
)

// AppendName appends the lower-case form of a DNS name, without its final dot,
// to dst and reports whether name is one. Underscores pass: names with them
// resolve and are in use. A wildcard is no name.
func AppendName(dst []byte, name string) ([]byte, bool) {
	name = strings.TrimSuffix(name, ".")
	if len(name) > MaxNameLen {
		return dst, false
	}
	label := 0
	for i := range len(name) {
		c := name[i]
		if c == '.' {
			if label == 0 || name[i-1] == '-' {
				return dst, false
			}
			label = 0
			dst = append(dst, c)
			continue
		}
		switch {
		case 'A' <= c && c <= 'Z':
			c += 'a' - 'A'
		case 'a' <= c && c <= 'z', '0' <= c && c <= '9', c == '_':
		case c == '-' && label > 0:
		default:
			return dst, false
		}
		if label++; label > maxLabelLen {
			return dst, false
		}
		dst = append(dst, c)
	}
	return dst, label > 0 && name[len(name)-1] != '-'
}

// canonicalName is AppendName for those who keep the result.
func canonicalName(name string) (string, bool) {
	b, ok := AppendName(nil, name)
	return string(b), ok
}

// IsAddress tells whether a server name is the text of an IP address, with or
// without the brackets of a URL. RFC 6066, section 3 forbids such names, and
// clients send them.
func IsAddress(name string) bool {
	if inner, ok := strings.CutPrefix(name, "["); ok {
		if name, ok = strings.CutSuffix(inner, "]"); !ok {
			return false
		}
	}
	// ParseAddr allocates an error for what is no address: ordinary names do not get there.
	if !strings.Contains(name, ":") && !endsInNumber(name) {
		return false
	}
	addr, err := netip.ParseAddr(name)
	return err == nil && addr.Zone() == ""
}

// endsInNumber tells whether the last label is all digits. No top-level domain
// is, so such a name is meant as an address.
func endsInNumber(name string) bool {
	last := name[strings.LastIndexByte(name, '.')+1:]
	return last != "" && strings.Trim(last, "0123456789") == ""
}

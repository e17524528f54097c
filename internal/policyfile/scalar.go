package policyfile

import (
	"encoding"
	"errors"
	"fmt"
	"math/big"
	"net/netip"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"time"

	"gopkg.in/yaml.v3"
)

var plainInteger = regexp.MustCompile(`^(0|-?[1-9][0-9]*)$`)

// setScalar sets v from text that is not an integer's expression: a default, or a checked scalar of the file.
func setScalar(v reflect.Value, s *shape, text string) error {
	switch s.kind {
	case kindBool:
		if text != "true" && text != "false" {
			return errors.New("only true and false are allowed")
		}
		v.SetBool(text == "true")
	case kindInt:
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil || v.OverflowInt(n) || !plainInteger.MatchString(text) {
			return errors.New("not a plain whole number")
		}
		v.SetInt(n)
	case kindString:
		v.SetString(text)
	case kindText:
		return setText(v, text)
	default:
		return errors.New("not a scalar")
	}
	return nil
}

// setText also refuses what the types of net/netip let pass although it can
// only be a mistake: no text at all, and a network with bits behind its length.
func setText(v reflect.Value, text string) error {
	if text == "" {
		return errors.New("must not be empty")
	}
	if network, ok := v.Addr().Interface().(*netip.Prefix); ok {
		var err error
		*network, err = parseNetwork(text)
		return err
	}
	err := v.Addr().Interface().(encoding.TextUnmarshaler).UnmarshalText([]byte(text))
	switch v.Addr().Interface().(type) {
	case *netip.Addr:
		if err != nil {
			return errors.New("not an address; allowed: one like 192.0.2.1 or 2001:db8::1")
		}
	case *netip.AddrPort:
		if err != nil {
			return errors.New("not an address with a port; allowed: one like 192.0.2.1:443 or [2001:db8::1]:443")
		}
	}
	return err
}

// parseNetwork reads a network, or an address that means itself alone. An IPv4
// network in IPv6 form is the IPv4 network: people copy both from their logs.
func parseNetwork(text string) (netip.Prefix, error) {
	wrong := errors.New("not a network; allowed: an address, or an address and a length, like 192.0.2.1, 192.0.2.0/24 or 2001:db8::/32")
	if addr, err := netip.ParseAddr(text); err == nil && addr.Zone() == "" {
		return netip.PrefixFrom(addr.Unmap(), addr.Unmap().BitLen()), nil
	}
	p, err := netip.ParsePrefix(text)
	if err != nil {
		return netip.Prefix{}, wrong
	}
	if p.Addr().Is4In6() {
		if p.Bits() < 96 {
			return netip.Prefix{}, errors.New("larger than all of IPv4 in IPv6 form; write 0.0.0.0/0, or the IPv6 network that is meant")
		}
		p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
	}
	if p != p.Masked() {
		return netip.Prefix{}, fmt.Errorf("has bits set behind its length; write %s", p.Masked())
	}
	return p, nil
}

// isPlain reports whether a scalar stands without quotes and not as a block text.
func isPlain(n *yaml.Node) bool {
	return n.Style&(yaml.SingleQuotedStyle|yaml.DoubleQuotedStyle|yaml.LiteralStyle|yaml.FoldedStyle) == 0
}

// integer reads a plain decimal number; the problem says how to write what was probably meant.
func integer(n *yaml.Node, key string) (int64, string) {
	text := n.Value
	if isPlain(n) && plainInteger.MatchString(text) {
		v, err := strconv.ParseInt(text, 10, 64)
		if err == nil && !reflect.ValueOf(0).OverflowInt(v) {
			return v, ""
		}
		return 0, shortened(text) + " is too large a number"
	}
	if !isPlain(n) {
		if plainInteger.MatchString(text) {
			return 0, fmt.Sprintf("%s is a text; write the number without quotes", quoted(text))
		}
		return 0, quoted(text) + " is a text, not a whole number"
	}
	unit := unitOf(key)
	if d, err := time.ParseDuration(text); err == nil && unit == "seconds" && !numberLike(text) {
		if d%time.Second == 0 {
			return 0, fmt.Sprintf("%s has a unit; write plain seconds: %d", quoted(text), d/time.Second)
		}
		return 0, quoted(text) + " has a unit; write plain whole seconds"
	}
	if unit != "" && startsWithDigit(text) && !numberLike(text) {
		return 0, fmt.Sprintf("%s has a unit; write plain %s", quoted(text), unit)
	}
	problem := quoted(text) + " is not a plain whole number"
	if meant, ok := meantInteger(text); ok {
		problem += "; write " + meant
	} else if hasLeadingZero(text) {
		problem += "; write it without the leading zero"
	}
	return 0, problem
}

func shortened(text string) string {
	if len(text) > maxQuoted {
		return text[:maxQuoted] + "…"
	}
	return text
}

func startsWithDigit(text string) bool {
	text = strings.TrimPrefix(text, "-")
	return text != "" && text[0] >= '0' && text[0] <= '9'
}

var otherNumber = regexp.MustCompile(`^[+-]?(0[xob][0-9a-fA-F_]+|[0-9][0-9_]*(\.[0-9_]*)?([eE][+-]?[0-9]{1,3})?)$`)

func numberLike(text string) bool { return otherNumber.MatchString(text) }

// meantInteger gives the plain form of a whole number in another notation. A
// leading zero has meant both octal and decimal to people, so none is given for it.
func meantInteger(text string) (string, bool) {
	if !numberLike(text) || hasLeadingZero(text) || len(text) > maxQuoted {
		return "", false
	}
	if n, ok := new(big.Int).SetString(text, 0); ok {
		return n.String(), n.IsInt64()
	}
	r, ok := new(big.Rat).SetString(strings.ReplaceAll(text, "_", ""))
	if !ok || !r.IsInt() || !r.Num().IsInt64() {
		return "", false
	}
	return r.Num().String(), true
}

func hasLeadingZero(text string) bool {
	digits := strings.TrimLeft(text, "+-")
	return numberLike(text) && len(digits) > 1 && digits[0] == '0' && strings.IndexByte("xob.eE", digits[1]) < 0
}

// unitOf gives the unit that a key's name ends in.
func unitOf(key string) string {
	switch {
	case strings.HasSuffix(key, "_secs"):
		return "seconds"
	case strings.HasSuffix(key, "_bytes"):
		return "bytes"
	case strings.HasSuffix(key, "_bps"):
		return "bytes a second"
	case strings.HasSuffix(key, "_percent"):
		return "percent"
	}
	return ""
}

// boolean reads true or false, and nothing that some readers of YAML take for them.
func boolean(n *yaml.Node) (value bool, problem string) {
	if isPlain(n) && (n.Value == "true" || n.Value == "false") {
		return n.Value == "true", ""
	}
	if !isPlain(n) {
		return false, quoted(n.Value) + " is a text; allowed: true, false, without quotes"
	}
	switch strings.ToLower(n.Value) {
	case "true", "yes", "y", "on", "1":
		return false, n.Value + " is not a bool here; write true (allowed: true, false)"
	case "false", "no", "n", "off", "0":
		return false, n.Value + " is not a bool here; write false (allowed: true, false)"
	}
	return false, quoted(n.Value) + " is not a bool; allowed: true, false"
}

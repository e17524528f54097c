package certs

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"relayedge/internal/keyfault"
)

// maxSelfIssued keeps the certificate of our own making well below the 64 KiB
// that crypto/tls accepts as a handshake message, whatever the names' lengths.
const maxSelfIssued = 100

// Config is the certificates section of the policy.
type Config struct {
	ACME       ACME       `key:"acme" doc:"certificates that are ordered from a certificate authority"`
	Files      []FilePair `key:"files" default:"[]" doc:"certificates from files; a changed pair is picked up by itself"`
	SelfIssued []string   `key:"self_issued" default:"[]" doc:"names for a certificate of our own making, for development"`
}

// FilePair names the PEM files of one certificate chain and its key.
type FilePair struct {
	Certificate string `key:"certificate" required:"true" path:"true" doc:"PEM file: the certificate, then its intermediates"`
	Key         string `key:"key" required:"true" path:"true" doc:"PEM file: the private key"`
}

// Validate judges the section alone, without opening a file.
func (c Config) Validate() error {
	var faults []error
	fault := func(key, format string, args ...any) {
		faults = append(faults, keyfault.New(key, format, args...))
	}
	for i, pair := range c.Files {
		if pair.Certificate == "" {
			fault(fmt.Sprintf("files[%d].certificate", i), "is empty; name a PEM file")
		}
		if pair.Key == "" {
			fault(fmt.Sprintf("files[%d].key", i), "is empty; name a PEM file")
		}
	}
	if n := len(c.SelfIssued); n > maxSelfIssued {
		fault("self_issued", "has %d names, allowed are %d", n, maxSelfIssued)
	}
	first := make(map[string]int)
	for i, written := range c.SelfIssued {
		key := fmt.Sprintf("self_issued[%d]", i)
		name, err := issuableName(written)
		if err != nil {
			fault(key, "%v", err)
			continue
		}
		if at, twice := first[name]; twice {
			fault(key, "%q is self_issued[%d] already", written, at)
			continue
		}
		first[name] = i
	}
	return errors.Join(faults...)
}

// issuableName returns the form in which a name of self_issued goes into the
// certificate.
func issuableName(written string) (string, error) {
	if addr, err := netip.ParseAddr(written); err == nil {
		if addr.Zone() != "" {
			return "", fmt.Errorf("%q has a zone, which a certificate cannot hold; write the address alone", written)
		}
		return addr.Unmap().String(), nil
	}
	if strings.HasSuffix(written, ".") {
		return "", fmt.Errorf("%q ends in a dot; write the name without it", written)
	}
	if strings.ContainsFunc(written, func(r rune) bool { return r > 0x7f }) {
		return "", fmt.Errorf("%q is not ASCII; write an international name in its xn-- form", written)
	}
	parent, wildcard := strings.CutPrefix(written, "*.")
	if strings.Contains(parent, "*") {
		return "", fmt.Errorf("%q: a * stands alone as the left-most label, as in *.example.org", written)
	}
	name, ok := canonicalName(parent)
	if !ok || endsInNumber(name) {
		return "", fmt.Errorf("%q is neither a DNS name nor an IP address", written)
	}
	if wildcard {
		name = "*." + name
	}
	if len(name) > MaxNameLen {
		return "", fmt.Errorf("%q is longer than the %d bytes of a DNS name", written, MaxNameLen)
	}
	return name, nil
}

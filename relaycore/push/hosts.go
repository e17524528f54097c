package push

import (
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"strconv"
	"strings"

	"relayedge/internal/keyfault"
)

// hosts are those that may be called, each with its port: "push.example.org:443",
// and ".example.org:443" for every name below that.
type hosts map[string]struct{}

// newHosts reads allowed_hosts.
func newHosts(list []string) (hosts, error) {
	var errs []error
	h := make(hosts, len(list))
	for i, text := range list {
		name, port, ported := strings.Cut(text, ":")
		if !ported {
			port = httpsPort
		}
		below, wild := strings.CutPrefix(name, "*.")
		if !isName(below) || !isPort(port) {
			errs = append(errs, keyfault.New(fmt.Sprintf("allowed_hosts[%d]", i), "%q is not the name of a host; write push.example.org, push.example.org:8443, or *.example.org for every name below example.org", text))
			continue
		}
		if wild {
			below = "." + below
		}
		h[strings.ToLower(below)+":"+port] = struct{}{}
	}
	return h, errors.Join(errs...)
}

const httpsPort = "443"

// allow reports whether host, a name and a port, is one of them.
func (h hosts) allow(host string) bool {
	for {
		if _, ok := h[host]; ok {
			return true
		}
		// To the next dot, which the name itself does not begin with.
		dot := strings.IndexByte(host[1:], '.')
		if dot < 0 {
			return false
		}
		host = host[1+dot:]
	}
}

// isName reports whether s is a host name in ASCII, without a dot at its end. An
// address is none: nobody has a certificate for what a list of names is for.
func isName(s string) bool {
	if len(s) > 253 {
		return false
	}
	for label := range strings.SplitSeq(s, ".") {
		if label == "" || len(label) > 63 || label[0] == '-' || label[len(label)-1] == '-' ||
			strings.Trim(strings.ToLower(label), "abcdefghijklmnopqrstuvwxyz0123456789-_") != "" {
			return false
		}
	}
	// What ends in a number is an address in one of its many spellings.
	last := s[strings.LastIndexByte(s, '.')+1:]
	return strings.Trim(last, "0123456789") != "" && !strings.HasPrefix(strings.ToLower(last), "0x")
}

func isPort(s string) bool {
	n, err := strconv.ParseUint(s, 10, 16)
	return err == nil && n > 0 && s[0] != '0'
}

// maxEndpoint is the longest endpoint, in bytes.
const maxEndpoint = 1024

// The faults of an endpoint. They do not quote it: it is a secret.
var (
	errEndpoint     = fmt.Errorf("the endpoint must be an https URL of at most %d printable ASCII bytes that names a host, without user and fragment", maxEndpoint)
	errHostRefused  = errors.New("the endpoint's host is not one that this relay calls")
	errNotPermitted = errors.New("the host's address is not a public one")
)

// hostOf returns the host of an endpoint, a name and a port, as hosts has them.
func hostOf(endpoint string) (string, error) {
	if len(endpoint) > maxEndpoint {
		return "", errEndpoint
	}
	for i := range len(endpoint) {
		if endpoint[i] <= ' ' || endpoint[i] >= 0x7f {
			return "", errEndpoint
		}
	}
	u, err := url.Parse(endpoint)
	if err != nil || u.Scheme != "https" || u.Opaque != "" || u.User != nil || strings.Contains(endpoint, "#") {
		return "", errEndpoint
	}
	name, port := u.Hostname(), u.Port()
	if port == "" {
		if strings.HasSuffix(u.Host, ":") {
			return "", errEndpoint
		}
		port = httpsPort
	}
	if !isName(name) || !isPort(port) {
		return "", errEndpoint
	}
	return strings.ToLower(name) + ":" + port, nil
}

// special are the networks that are no part of the public Internet, or that stand
// for another address (RFC 6890 and its registries).
var special = func() (all []netip.Prefix) {
	for _, text := range []string{
		"0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12",
		"192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15",
		"198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4",
		// Of IPv6 only what is global unicast comes into question.
		"2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20",
	} {
		all = append(all, netip.MustParsePrefix(text))
	}
	return all
}()

var (
	globalUnicast = netip.MustParsePrefix("2000::/3")
	// nat64 is the way to public IPv4 addresses where the relay has IPv6 alone. Its
	// local sibling, 64:ff9b:1::/48, leads to whatever its operator likes.
	nat64 = netip.MustParsePrefix("64:ff9b::/96")
)

// public reports whether addr is an address of the public Internet. Networks of
// the embedded prefixes are judged by the IPv4 address in their last 32 bits.
func public(addr netip.Addr, embedded []netip.Prefix) bool {
	if !addr.IsValid() || addr.Zone() != "" {
		return false
	}
	addr = addr.Unmap()
	for _, p := range append([]netip.Prefix{nat64}, embedded...) {
		if addr.Is6() && p.Contains(addr) {
			all := addr.As16()
			addr = netip.AddrFrom4([4]byte(all[12:]))
		}
	}
	if addr.Is6() && !globalUnicast.Contains(addr) {
		return false
	}
	for _, p := range special {
		if p.Contains(addr) {
			return false
		}
	}
	return true
}

package admission

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strconv"
	"strings"
)

// Bounds of a file of networks. The largest public lists have some hundred thousand.
const (
	maxNetworksBytes = 64 << 20
	maxNetworks      = 1_000_000
	// shownFaults is how many faults of a file are told; the rest is a number.
	shownFaults = 20
)

// ReadNetworks reads a list of networks, as deny_file has it: one network, or
// one address that means itself alone, a line; what follows # is a comment;
// blank lines, CRLF and a byte order mark are fine. An IPv4-mapped network is the
// IPv4 one. Of a list with more than 64 MiB or 1,000,000 networks it reads no
// further. The error says all that is wrong, one `name:line: …` a line, the
// first 20 of them.
func ReadNetworks(name string, r io.Reader) ([]netip.Prefix, error) {
	list := networkList{name: name, networks: []netip.Prefix{}}
	if err := list.read(r); err != nil {
		return nil, err
	}
	if list.faults > shownFaults {
		list.shown = append(list.shown, fmt.Errorf("%s: and %d more faults", name, list.faults-shownFaults))
	}
	if list.faults > 0 {
		return nil, errors.Join(list.shown...)
	}
	return list.networks, nil
}

// networkList is a list that is being read.
type networkList struct {
	name     string
	line     int
	networks []netip.Prefix
	faults   int
	shown    []error
}

func (l *networkList) fault(problem string) {
	if l.faults++; l.faults <= shownFaults {
		l.shown = append(l.shown, fmt.Errorf("%s:%d: %s", l.name, l.line, problem))
	}
}

// read reads every line; its error is the reader's. One byte beyond the bound is
// enough to see that it is exceeded.
func (l *networkList) read(r io.Reader) error {
	bounded := &io.LimitedReader{R: r, N: maxNetworksBytes + 1}
	lines := bufio.NewReader(bounded)
	for {
		text, cut, err := lines.ReadLine()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return fmt.Errorf("%s: %w", l.name, err)
		}
		if l.line++; l.line == 1 {
			text = bytes.TrimPrefix(text, []byte("\uFEFF"))
		}
		text, _, comment := bytes.Cut(text, []byte("#"))
		problem := ""
		if text = bytes.TrimSpace(text); len(text) > 0 || cut && !comment {
			problem = l.entry(text, cut && !comment)
		}
		for cut && err == nil { // only a comment is that long
			_, cut, err = lines.ReadLine()
		}
		switch {
		case bounded.N <= 0:
			l.fault(fmt.Sprintf("the file has more than %d bytes, the most that are read; shorten it, or join networks", maxNetworksBytes))
			return nil
		case len(l.networks) > maxNetworks:
			l.fault(fmt.Sprintf("the file has more than %d networks, the most that are taken; join some", maxNetworks))
			return nil
		case problem != "":
			l.fault(problem)
		}
		if err != nil && err != io.EOF {
			return fmt.Errorf("%s: %w", l.name, err)
		}
	}
}

// entry takes what stands in a line, or says what is wrong with it.
func (l *networkList) entry(text []byte, cut bool) (problem string) {
	if cut {
		return "a line that long is no network; write one network a line, and comments behind #"
	}
	p, problem := parseNetwork(string(text))
	if problem == "" {
		l.networks = append(l.networks, p)
	}
	return problem
}

// parseNetwork reads an address or a network, unmapped.
func parseNetwork(text string) (netip.Prefix, string) {
	written, length, hasLength := strings.Cut(text, "/")
	addr, err := netip.ParseAddr(written)
	switch {
	case len(strings.Fields(text)) > 1:
		return netip.Prefix{}, quoted(text) + " is more than one network; write one a line, and comments behind #"
	case err != nil:
		return netip.Prefix{}, quoted(text) + " is not a network; write one like 192.0.2.1, 192.0.2.0/24 or 2001:db8::/32"
	case addr.Zone() != "":
		return netip.Prefix{}, quoted(text) + " has a zone, which a network has not; take % and what follows it out"
	case !hasLength:
		addr = addr.Unmap()
		return netip.PrefixFrom(addr, addr.BitLen()), ""
	}
	bits, err := strconv.Atoi(length)
	if err != nil || strconv.Itoa(bits) != length || bits < 0 || bits > addr.BitLen() {
		return netip.Prefix{}, fmt.Sprintf("%s has no length that such an address can have; write 0 to %d behind the /", quoted(text), addr.BitLen())
	}
	if addr.Is4In6() && bits < 96 {
		return netip.Prefix{}, quoted(text) + " is wider than all of IPv4 in IPv6 form; write 0.0.0.0/0, or the IPv6 network that is meant"
	}
	p := unmapPrefix(netip.PrefixFrom(addr, bits))
	if p != p.Masked() {
		return netip.Prefix{}, fmt.Sprintf("%s has bits beyond its length; write %v", quoted(text), p.Masked())
	}
	return p, ""
}

// maxQuoted is how many bytes of a line an error repeats.
const maxQuoted = 60

func quoted(text string) string {
	if len(text) > maxQuoted {
		return strconv.QuoteToASCII(text[:maxQuoted]) + "…"
	}
	return strconv.QuoteToASCII(text)
}

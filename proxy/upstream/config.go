package upstream

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"relayedge/internal/hostport"
	"relayedge/internal/keyfault"
	"relayedge/internal/proxyheader"
)

// Config is one entry of the upstreams section of the policy.
type Config struct {
	Addresses          []string          `key:"addresses" default:"[127.0.0.1:7777]" path:"unix" doc:"the relay's addresses, host:port or unix:/path; of those that are up, the one with the fewest connections is taken"`
	ClientAddress      string            `key:"client_address" default:"proxy-v2" enum:"proxy-v2|proxy-v1|x-forwarded-for|x-real-ip|none" doc:"how the relay learns the client's address; the x- ones need protocol: http"`
	ProxyTLVs          []string          `key:"proxy_tlvs" default:"[alpn, authority, ssl, unique_id, crc32c]" enum:"alpn|authority|ssl|unique_id|crc32c|channel_binding" doc:"what the PROXY v2 header carries beside the addresses"`
	ChannelBindingTLV  int               `key:"channel_binding_tlv" default:"228" min:"224" max:"239" doc:"type of the channel binding TLV, of the custom range"`
	CustomTLVs         map[string]string `key:"custom_tlvs" doc:"type: text, further TLVs of the PROXY v2 header; a type is 224 to 239"`
	ALPN               []string          `key:"alpn" default:"[]" doc:"application protocols that the relay speaks; empty: whatever the listener offers"`
	ConnectTimeoutSecs int               `key:"connect_timeout_secs" default:"5" min:"1" max:"60" doc:"time to connect to the relay, all of its addresses together"`
	HealthCheckSecs    int               `key:"health_check_secs" default:"10" min:"0" max:"3600" zero:"off" doc:"time from one look whether an address takes connections to the next"`
	WhenDown           string            `key:"when_down" default:"keep" enum:"keep|close" doc:"what becomes of open connections to an address whose checks failed three times in a row, or that a reload removed"`
	SourceAddresses    []netip.Prefix    `key:"source_addresses" default:"[]" doc:"addresses and networks of this machine to connect from, in turn; none: the system chooses"`
}

// Bounds of a config.
const (
	maxAddresses = 64
	// maxCustomTLVs is for all custom TLVs together, in bytes with their heads:
	// nginx takes a header of 4096 bytes, and the others of ours need room.
	maxCustomTLVs = 2048
)

// Validate judges what the tags cannot say.
func (c Config) Validate() error {
	var faults []error
	if n := len(c.Addresses); n < 1 || n > maxAddresses {
		faults = append(faults, keyfault.New("addresses", "%d addresses are written; an upstream has 1 to %d", n, maxAddresses))
	}
	for i, address := range c.Addresses {
		key := fmt.Sprintf("addresses[%d]", i)
		if err := hostport.CheckTarget(address); err != nil {
			faults = append(faults, keyfault.New(key, "%w", err))
		} else if slices.Contains(c.Addresses[:i], address) {
			faults = append(faults, keyfault.New(key, "%q stands twice; every address has one place", address))
		}
	}
	for i, name := range c.ALPN {
		if name == "" || len(name) > 255 {
			faults = append(faults, keyfault.New(fmt.Sprintf("alpn[%d]", i), "a protocol name has 1 to 255 bytes"))
		}
	}
	return errors.Join(append(faults, c.judgeTLVs(), c.judgeSources())...)
}

func (c Config) judgeTLVs() error {
	if len(c.CustomTLVs) > 0 && c.ClientAddress != "proxy-v2" {
		return keyfault.New("custom_tlvs", "only a PROXY v2 header has TLVs; write client_address: proxy-v2, or leave the key out")
	}
	var faults []error
	size := 0
	for _, name := range slices.Sorted(maps.Keys(c.CustomTLVs)) {
		key := "custom_tlvs." + name
		size += 3 + len(c.CustomTLVs[name])
		typ, err := strconv.Atoi(name)
		switch {
		case err != nil || strconv.Itoa(typ) != name || typ < 224 || typ > 239:
			faults = append(faults, keyfault.New(key, "%q is no type for a TLV of one's own; allowed is a plain number from 224 to 239", name))
		case typ == c.ChannelBindingTLV && slices.Contains(c.ProxyTLVs, "channel_binding"):
			faults = append(faults, keyfault.New(key, "is the type of the channel binding; take another, or write another channel_binding_tlv"))
		}
	}
	if size > maxCustomTLVs {
		faults = append(faults, keyfault.New("custom_tlvs", "are %d bytes with their heads; allowed are %d, so that relays take the header", size, maxCustomTLVs))
	}
	return errors.Join(faults...)
}

func (c Config) judgeSources() error {
	if len(c.SourceAddresses) == 0 {
		return nil
	}
	pool, err := newSources(c.SourceAddresses)
	if err != nil {
		return err
	}
	for i, address := range c.Addresses {
		host, err := netip.ParseAddrPort(address)
		if err != nil {
			continue // a name, whose family is known at the dial, or a unix socket
		}
		if family := familyOf(host.Addr().Unmap()); pool.count(family) == 0 {
			return keyfault.New("source_addresses", "none is %s, as addresses[%d] (%s) needs; add one, or move that address to an upstream of its own", family, i, address)
		}
	}
	return nil
}

// customTLVs gives the custom TLVs in the order of their types.
func (c Config) customTLVs() []proxyheader.TLV {
	var tlvs []proxyheader.TLV
	for name, text := range c.CustomTLVs {
		typ, err := strconv.ParseUint(name, 10, 8)
		if err != nil {
			continue // Validate has refused it
		}
		tlvs = append(tlvs, proxyheader.TLV{Type: byte(typ), Value: []byte(text)})
	}
	slices.SortFunc(tlvs, func(a, b proxyheader.TLV) int { return cmp.Compare(a.Type, b.Type) })
	return tlvs
}

// Told says in words how the relay learns who the client is.
func (c Config) Told() string {
	if version, ok := strings.CutPrefix(c.ClientAddress, "proxy-"); ok {
		return "told the client's address by PROXY " + version
	}
	if field, ok := HeaderField(c.ClientAddress); ok {
		return "told the client's address by " + field
	}
	return "not told the client's address"
}

// HeaderField returns the field of a request's header in which a client_address
// tells the client, if it is one that does.
func HeaderField(clientAddress string) (string, bool) {
	field, ok := map[string]string{"x-forwarded-for": "X-Forwarded-For", "x-real-ip": "X-Real-IP"}[clientAddress]
	return field, ok
}

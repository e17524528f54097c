package upstream

import (
	"fmt"

	"relayedge/internal/hostport"
	"relayedge/internal/keyfault"
)

// Config is one entry of the upstreams section of the policy.
type Config struct {
	Addresses          []string `key:"addresses" default:"[127.0.0.1:7777]" doc:"the relay's address, host:port"`
	ClientAddress      string   `key:"client_address" default:"proxy-v2" enum:"proxy-v2|none" doc:"how the relay learns the client's address"`
	ProxyTLVs          []string `key:"proxy_tlvs" default:"[alpn, authority, ssl, unique_id, crc32c]" enum:"alpn|authority|ssl|unique_id|crc32c|channel_binding" doc:"what the PROXY v2 header carries beside the addresses"`
	ChannelBindingTLV  int      `key:"channel_binding_tlv" default:"228" min:"224" max:"239" doc:"type of the channel binding TLV, of the custom range"`
	ALPN               []string `key:"alpn" default:"[]" doc:"application protocols that the relay speaks; empty: whatever the listener offers"`
	ConnectTimeoutSecs int      `key:"connect_timeout_secs" default:"5" min:"1" max:"60" doc:"time to connect to the relay"`
}

// Validate judges what the tags cannot say.
func (c Config) Validate() error {
	if len(c.Addresses) != 1 {
		return keyfault.New("addresses", "%d addresses are written; an upstream has one", len(c.Addresses))
	}
	if err := hostport.CheckTarget(c.Addresses[0]); err != nil {
		return keyfault.New("addresses[0]", "%w", err)
	}
	for i, name := range c.ALPN {
		if name == "" || len(name) > 255 {
			return keyfault.New(fmt.Sprintf("alpn[%d]", i), "a protocol name has 1 to 255 bytes")
		}
	}
	return nil
}

package proxy

import (
	"crypto/tls"

	"relayedge/internal/proxyheader"
	"relayedge/proxy/upstream"
)

// header is the PROXY header for the relay, or nothing if it wants none. A
// client on a unix socket has no address to tell: then it is LOCAL, or UNKNOWN in
// version 1.
func (s *session) header(cfg upstream.Config) ([]byte, error) {
	h := proxyheader.Header{Source: s.client, Destination: s.target}
	switch cfg.ClientAddress {
	case "proxy-v1":
		return proxyheader.AppendV1(nil, h), nil
	case "proxy-v2":
		var checksum bool
		h.TLVs, checksum = s.tlvs(cfg)
		return proxyheader.AppendV2(nil, h, checksum)
	}
	return nil, nil
}

// tlvs are the TLVs that the config lists and that there is something to say
// in, and whether a checksum is among them.
func (s *session) tlvs(cfg upstream.Config) (tlvs []proxyheader.TLV, checksum bool) {
	add := func(typ byte, value []byte) {
		tlvs = append(tlvs, proxyheader.TLV{Type: typ, Value: value})
	}
	for _, name := range cfg.ProxyTLVs {
		switch name {
		case "alpn":
			if s.state != nil && s.state.NegotiatedProtocol != "" {
				add(proxyheader.TypeALPN, []byte(s.state.NegotiatedProtocol))
			}
		case "authority":
			if s.serverName != "" {
				add(proxyheader.TypeAuthority, []byte(s.serverName))
			}
		case "ssl":
			if s.state != nil {
				tlvs = append(tlvs, describeTLS(s.state).TLV())
			}
		case "unique_id":
			add(proxyheader.TypeUniqueID, []byte(s.id))
		case "channel_binding":
			if binding := channelBinding(s.state); binding != nil {
				add(byte(cfg.ChannelBindingTLV), binding)
			}
		case "crc32c":
			checksum = true
		}
	}
	return append(tlvs, s.upstream.CustomTLVs()...), checksum
}

// describeTLS says in the SSL TLV what the session is.
func describeTLS(state *tls.ConnectionState) proxyheader.SSL {
	ssl := proxyheader.SSL{
		Verified: len(state.VerifiedChains) > 0,
		Resumed:  state.DidResume,
		Version:  proxyheader.VersionName(state.Version),
		Cipher:   proxyheader.CipherName(state.CipherSuite),
	}
	if len(state.PeerCertificates) > 0 {
		ssl.CommonName = state.PeerCertificates[0].Subject.CommonName
	}
	return ssl
}

// channelBinding is the 32 bytes of tls-exporter (RFC 9266), or nil for a
// session that has no exporter: TLS 1.2 without extended master secret, and
// none at all.
func channelBinding(state *tls.ConnectionState) []byte {
	if state == nil {
		return nil
	}
	binding, err := state.ExportKeyingMaterial("EXPORTER-Channel-Binding", nil, 32)
	if err != nil {
		return nil
	}
	return binding
}

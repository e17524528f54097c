package main

import (
	"slices"
	"strings"
	"testing"
)

// usual is a setting in which every value is another.
var usual = setting{
	Folder: "/mnt", Conf: "x.conf", Listen: "127.0.0.1:8001", Backend: "127.0.0.2:9002", Engine: "loop",
	CPUs: 3, Connections: 7000, PerAddress: 64, Descriptors: 15000,
}

// What makes the figures comparable stands in every configuration.
func TestConfigurations(t *testing.T) {
	changed := func(change func(*setting)) setting {
		s := usual
		change(&s)
		return s
	}
	for _, c := range []struct {
		name    string
		peer    string
		setting setting
		has     []string
		lacks   []string
	}{
		{"relayedge", "relayedge", usual, []string{
			`bind: "127.0.0.1:8001"`, `addresses: ["127.0.0.2:9002"]`, "engine: loop", "max_connections: 7000", "max_connections_per_ip: 64",
			"certificate: certificate.pem, key: key.pem", "rate_limit_bps:", `metrics: {bind_addr: "127.0.0.1:0"}`,
		}, []string{"max_handshakes", "tls_handshake_timeout_secs", "proxy_tlvs", "connection_rate"}},
		{"relayedge whose handshakes may be slow", "relayedge", changed(func(s *setting) { s.Handshakes = true }),
			[]string{"max_handshakes: 7000", "tls_handshake_timeout_secs: 120"}, nil},
		{"haproxy", "haproxy", usual, []string{
			"bind 127.0.0.1:8001 ssl crt /mnt/both.pem", "server backend 127.0.0.2:9002 send-proxy-v2", "nbthread 3", "maxconn 7000",
			"sc0_conn_cur gt 64", "ssl-min-ver TLSv1.3", "ciphersuites TLS_AES_128_GCM_SHA256\n",
		}, nil},
		{"nginx", "nginx", usual, []string{
			"listen 127.0.0.1:8001 ssl", "proxy_pass 127.0.0.2:9002;", "worker_processes 3;", "worker_connections 15000;", "limit_conn addresses 64;",
			"ssl_protocols TLSv1.3;", "Ciphersuites TLS_AES_128_GCM_SHA256;", "proxy_protocol on;", "/mnt/certificate.pem",
		}, []string{"load_module", "user "}},
		{"nginx as root, with a module", "nginx", changed(func(s *setting) { s.Root, s.Module = true, "/m.so" }),
			[]string{"load_module /m.so;\nuser nobody nogroup;\nworker_processes"}, nil},
		{"hitch", "hitch", usual, []string{
			`frontend = "[127.0.0.1]:8001"`, `backend = "[127.0.0.2]:9002"`, "workers = 3", `pem-file = "/mnt/both.pem"`,
			"write-proxy-v2 = on", "tls-protos = TLSv1.3", `ciphersuites = "TLS_AES_128_GCM_SHA256"`,
		}, []string{"user ="}},
		{"hitch as root", "hitch", changed(func(s *setting) { s.Root = true }), []string{`user = "nobody"`, `group = "nogroup"`}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, err := peerNamed(c.peer)
			if err != nil {
				t.Fatal(err)
			}
			text, err := p.configuration(c.setting)
			if err != nil {
				t.Fatal(err)
			}
			for _, part := range c.has {
				if !strings.Contains(string(text), part) {
					t.Errorf("%q is missing in\n%s", part, text)
				}
			}
			for _, part := range c.lacks {
				if strings.Contains(string(text), part) {
					t.Errorf("%q stands in\n%s", part, text)
				}
			}
		})
	}
}

func TestConfigurationRefusesFolders(t *testing.T) {
	s := usual
	s.Folder = "/a b"
	p, _ := peerNamed("nginx")
	if _, err := p.configuration(s); err == nil {
		t.Error("a folder that ends a word is taken")
	}
	s = usual
	s.Backend = "nowhere"
	p, _ = peerNamed("hitch")
	if _, err := p.configuration(s); err == nil {
		t.Error("an address without a port is taken")
	}
}

func TestPeers(t *testing.T) {
	if _, err := peerNamed("apache"); err == nil {
		t.Error("a peer that there is not is found")
	}
	for _, name := range append([]string{ours}, judged...) {
		p, err := peerNamed(name)
		if err != nil {
			t.Error(err)
			continue
		}
		if p.debian != slices.Contains(judged, name) {
			t.Errorf("%s comes from Debian: %v", name, p.debian)
		}
		if args := strings.Join(p.args(usual), " "); !strings.Contains(args, "/mnt/x.conf") {
			t.Errorf("%s is not told its configuration: %s", name, args)
		}
	}
}

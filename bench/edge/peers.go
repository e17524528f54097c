package main

import (
	"bytes"
	"embed"
	"fmt"
	"net"
	"slices"
	"strings"
	"text/template"
)

//go:embed conf
var confs embed.FS

var templates = template.Must(template.ParseFS(confs, "conf/*"))

// peer is a program that can be measured.
type peer struct {
	name    string
	conf    string // its configuration's template; empty for none
	program string // a name in the folder of what was built, or a path from its system's root
	args    func(s setting) []string
	debian  bool   // from the peers' system
	note    string // how it differs from the others
	// Why it does not do an operation, by operation.
	cannot map[string]string
}

const noCap = "it has no cap of connections from one address"

var peers = []peer{
	{
		name: ours, conf: "relayedge.yaml", program: "relayedge",
		args: func(s setting) []string { return []string{"run", "-c", s.Folder + "/" + s.Conf} },
	},
	{
		name: "haproxy", conf: "haproxy.cfg", program: "/usr/sbin/haproxy", debian: true,
		args: func(s setting) []string { return []string{"-db", "-f", s.Folder + "/" + s.Conf} },
	},
	{
		name: "nginx", conf: "nginx.conf", program: "/usr/sbin/nginx", debian: true,
		args: func(s setting) []string {
			return []string{"-c", s.Folder + "/" + s.Conf, "-e", s.Folder + "/nginx.log"}
		},
		note: "it tells the backend of the client by PROXY v1, which is all that it can write",
	},
	{
		name: "hitch", conf: "hitch.conf", program: "/usr/sbin/hitch", debian: true,
		args:   func(s setting) []string { return []string{"--config=" + s.Folder + "/" + s.Conf} },
		cannot: map[string]string{"refusal": noCap},
	},
	{
		name: "naive", program: "naive",
		args: func(s setting) []string {
			return []string{"-listen", s.Listen, "-backend", s.Backend, "-certificate", s.Folder + "/certificate.pem", "-key", s.Folder + "/key.pem"}
		},
		cannot: map[string]string{"refusal": noCap},
	},
	{
		// The other engine of ours, to see what the event loop gains.
		name: "stream", conf: "relayedge.yaml", program: "relayedge",
		args: func(s setting) []string { return []string{"run", "-c", s.Folder + "/" + s.Conf} },
	},
}

func peerNamed(name string) (*peer, error) {
	i := slices.IndexFunc(peers, func(p peer) bool { return p.name == name })
	if i < 0 {
		return nil, fmt.Errorf("there is no peer %q", name)
	}
	return &peers[i], nil
}

// setting is what a configuration says.
type setting struct {
	Folder          string // of certificate and configuration, as the proxy sees it
	Conf            string // the configuration's name there
	Listen, Backend string // host:port
	Engine          string // relayedge's
	CPUs            int
	Connections     int // that it may have
	PerAddress      int // that one address may have
	Descriptors     int
	Handshakes      bool   // whether handshakes may be many and slow
	Module          string // nginx's stream module; empty where it is built in
	Root            bool
}

func (s setting) ListenHost() (string, error)  { return part(s.Listen, 0) }
func (s setting) ListenPort() (string, error)  { return part(s.Listen, 1) }
func (s setting) BackendHost() (string, error) { return part(s.Backend, 0) }
func (s setting) BackendPort() (string, error) { return part(s.Backend, 1) }

func part(hostport string, i int) (string, error) {
	host, port, err := net.SplitHostPort(hostport)
	return [...]string{host, port}[i], err
}

// configuration is what the peer is told in its file.
func (p *peer) configuration(s setting) ([]byte, error) {
	if strings.ContainsAny(s.Folder, "\"\\ \n;{}") {
		return nil, fmt.Errorf("the folder %q does not fit into configuration files", s.Folder)
	}
	var b bytes.Buffer
	if err := templates.ExecuteTemplate(&b, p.conf, s); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

package telemetry

import (
	"maps"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strings"
)

// Names are the hosts under which the pages of an endpoint answer. Without them
// a site that a browser looks at could have its own name lead to the loopback
// address, and read the pages by it.
type Names struct {
	bind    netip.Addr // the zero Addr where the bind names none
	own     string     // the machine's name, where that is answered
	anyAddr bool       // every address is answered, not only those of the loopback
}

// Names are those of a valid c: localhost, the loopback addresses and the address
// of bind_addr; with allow_public every address, which no site can make a name
// lead to, and the name that the machine has.
func (c Config) Names() Names {
	var n Names
	host, _, _ := net.SplitHostPort(c.BindAddr)
	if addr, err := netip.ParseAddr(host); err == nil {
		n.bind = addr.WithZone("").Unmap()
	}
	if c.AllowPublic {
		n.anyAddr = true
		if own, err := os.Hostname(); err == nil {
			n.own = own
		}
	}
	return n
}

// hold reports whether a Host field names one of them; which port it says is no
// matter, since one may have been forwarded.
func (n Names) hold(field string) bool {
	host := field
	if h, port, err := net.SplitHostPort(field); err == nil {
		if strings.Trim(port, "0123456789") != "" {
			return false
		}
		host = h
	} else if inner, ok := strings.CutPrefix(field, "["); ok {
		host = strings.TrimSuffix(inner, "]")
	}
	if addr, err := netip.ParseAddr(host); err == nil {
		addr = addr.WithZone("").Unmap()
		return n.anyAddr || addr.IsLoopback() || addr == n.bind && !addr.IsUnspecified()
	}
	host = strings.TrimSuffix(host, ".")
	return strings.EqualFold(host, "localhost") || n.own != "" && strings.EqualFold(host, n.own)
}

// page answers one of the pages.
func (s *Server) page(w http.ResponseWriter, r *http.Request, page http.Handler) {
	h := w.Header()
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	if !s.names.hold(r.Host) {
		answer(w, http.StatusMisdirectedRequest, "This page answers to localhost and to the address that it is bound to, and not to the name in this request; docs/status.md says more.")
		return
	}
	page.ServeHTTP(w, r)
}

// whatIsHere tells who asks for something else.
func (s *Server) whatIsHere() string {
	paths := append(slices.Sorted(maps.Keys(s.pages)), "/metrics", "/healthz")
	return "Only " + strings.Join(paths, ", ") + " and /readyz are here."
}

package relaycore

import (
	"context"
	"log/slog"
	"net/netip"

	"relayedge/internal/logging"
	"relayedge/internal/proxyheader"
)

// about is what lines about a connection say of it: the front end's name for it
// and whose it is.
type about struct {
	id     string // UNIQUE_ID of the PROXY header; empty: none, or none that may stand on a line
	client netip.Addr
}

// maxID is the longest UNIQUE_ID that the PROXY protocol knows.
const maxID = 128

// connectionID is the header's UNIQUE_ID, if it is text that a log can hold as
// it is: another front end may send any bytes.
func connectionID(h proxyheader.Header) string {
	id, _ := h.Lookup(proxyheader.TypeUniqueID)
	if len(id) > maxID {
		return ""
	}
	for _, b := range id {
		if b <= ' ' || b > '~' {
			return ""
		}
	}
	return string(id)
}

// tell logs a line about a connection: the attributes that all such lines
// have, then the given ones. Below the level it costs nothing.
func (s *Server) tell(level slog.Level, who *about, msg string, attrs ...slog.Attr) {
	if !s.log.Enabled(context.Background(), level) {
		return
	}
	all := []slog.Attr{logging.Client(who.client)}
	if who.id != "" {
		all = append(all, slog.String("id", who.id))
	}
	s.log.LogAttrs(context.Background(), level, msg, append(all, attrs...)...)
}

package proxy

import (
	"context"
	"log/slog"

	"relayedge/internal/logging"
)

// tell logs a line about the session: the attributes that all such lines have,
// then the given ones. Below the level it costs nothing.
func (s *session) tell(level slog.Level, msg string, attrs ...slog.Attr) {
	log := s.server.log
	if !log.Enabled(context.Background(), level) {
		return
	}
	all := append([]slog.Attr{
		slog.String("id", s.id), slog.String("listener", s.terms.config.Name), logging.Client(s.client.Addr()),
	}, attrs...)
	log.LogAttrs(context.Background(), level, msg, all...)
}

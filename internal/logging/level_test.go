package logging

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
)

// Every logger that comes from one follows, those that have been given
// attributes before too, in both directions.
func TestSetLevel(t *testing.T) {
	for _, format := range []string{"text", "json"} {
		var out bytes.Buffer
		log, _ := New(Config{Level: "info", Format: format, ClientAddresses: "none"}, &out)
		child := log.With("part", "relay").WithGroup("g")
		for _, row := range []struct {
			set   *slog.Logger
			level string
			lines int
		}{{child, "debug", 4}, {log, "warn", 0}, {child, "info", 2}} {
			SetLevel(row.set, row.level)
			out.Reset()
			for _, l := range []*slog.Logger{log, child} {
				l.Debug("d")
				l.Info("i")
			}
			if got := strings.Count(out.String(), "\n"); got != row.lines {
				t.Errorf("%s, %s: %d lines, want %d: %s", format, row.level, got, row.lines, out.String())
			}
		}
	}
	SetLevel(slog.New(slog.DiscardHandler), "debug") // which has none to set
}

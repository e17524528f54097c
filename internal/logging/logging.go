package logging

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"unicode/utf8"
)

// Config is the log section of the policy.
type Config struct {
	Level           string `key:"level" default:"info" enum:"debug|info|warn|error" doc:"the least level that is logged"`
	Format          string `key:"format" default:"text" enum:"text|json" doc:"text: key=value; json: one object a line"`
	ClientAddresses string `key:"client_addresses" default:"none" enum:"none|prefix|full" doc:"what a line about a connection says of its client: nothing, its network (an IPv4 /24, an IPv6 /48), or its address"`
}

// New returns the logger of a config in the ranges of its tags, and a function
// that writes what the logger still has to say of folded lines. Lines that come
// after it are written as they are.
func New(cfg Config, w io.Writer) (log *slog.Logger, finish func()) {
	level := new(slog.LevelVar)
	level.Set(levelOf(cfg.Level))
	options := &slog.HandlerOptions{Level: level}
	var out slog.Handler
	if cfg.Format == "json" {
		out = slog.NewJSONHandler(escaper{w, appendJSONLine}, options)
	} else {
		out = slog.NewTextHandler(escaper{w, appendTextLine}, options)
	}
	folds := newFolds(out)
	return slog.New(&handler{out: out, level: level, folds: folds, clients: cfg.ClientAddresses}), folds.finish
}

// SetLevel changes the least level that a logger of this package, and every one
// that comes from the same call of New, logs. Another logger keeps its own.
func SetLevel(log *slog.Logger, level string) {
	if h, ok := log.Handler().(*handler); ok {
		h.level.Set(levelOf(level))
	}
}

func levelOf(name string) (level slog.Level) {
	if err := level.UnmarshalText([]byte(name)); err != nil {
		panic("logging: a level that the policy does not allow: " + name)
	}
	return level
}

// maxText bounds a message and the text of a value, in bytes. The stack of a
// panic is the longest that there is reason to print.
const maxText = 16 << 10

// handler prepares a record for the handler that writes it.
type handler struct {
	// Static.
	out     slog.Handler // with the attributes so far
	level   *slog.LevelVar
	folds   *folds
	clients string
	subject subject // of the attributes so far
	grouped bool    // what stands in a group names no subject
}

func (h *handler) Enabled(ctx context.Context, level slog.Level) bool {
	return h.out.Enabled(ctx, level)
}

func (h *handler) Handle(ctx context.Context, r slog.Record) error {
	if r.Level > slog.LevelDebug {
		about := h.subject
		if !h.grouped {
			r.Attrs(func(a slog.Attr) bool {
				about = about.with(a)
				return true
			})
		}
		if !h.folds.show(r.Level, r.Message, about) {
			return nil
		}
	}
	told := slog.NewRecord(r.Time, r.Level, cut(r.Message), r.PC)
	r.Attrs(func(a slog.Attr) bool {
		told.AddAttrs(h.attr(a))
		return true
	})
	return h.out.Handle(ctx, told)
}

func (h *handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	with := *h
	told := make([]slog.Attr, len(attrs))
	for i, a := range attrs {
		told[i] = h.attr(a)
		if !h.grouped {
			with.subject = with.subject.with(a)
		}
	}
	with.out = h.out.WithAttrs(told)
	return &with
}

func (h *handler) WithGroup(name string) slog.Handler {
	if name == "" {
		return h
	}
	with := *h
	with.out, with.grouped = h.out.WithGroup(name), true
	return &with
}

// attr is the attribute as it may stand on a line; the zero Attr stands on none.
func (h *handler) attr(a slog.Attr) slog.Attr {
	switch a.Value.Kind() {
	case slog.KindLogValuer:
		if c, ok := a.Value.Any().(client); ok {
			return c.attr(a.Key, h.clients)
		}
		return h.attr(slog.Attr{Key: a.Key, Value: a.Value.Resolve()})
	case slog.KindGroup:
		members := a.Value.Group()
		told := make([]slog.Attr, len(members))
		for i, m := range members {
			told[i] = h.attr(m)
		}
		return slog.Attr{Key: a.Key, Value: slog.GroupValue(told...)}
	case slog.KindDuration: // which JSON would have in nanoseconds
		return slog.String(a.Key, a.Value.Duration().String())
	case slog.KindString:
		return slog.String(a.Key, cut(a.Value.String()))
	case slog.KindAny:
		if err, ok := a.Value.Any().(error); ok {
			return slog.String(a.Key, cut(err.Error()))
		}
	}
	return a
}

// cut shortens a text that is too long for a line, between two characters.
func cut(s string) string {
	if len(s) <= maxText {
		return s
	}
	end := maxText
	for end > maxText-utf8.UTFMax && !utf8.RuneStart(s[end]) {
		end--
	}
	return fmt.Sprintf("%s… (of %d bytes)", s[:end], len(s))
}

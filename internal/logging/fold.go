package logging

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	// foldWindow is the time in which lines of one kind are counted.
	foldWindow = 10 * time.Second
	// foldShown is how many of them are written; where the window before had more
	// than it could show, only the first.
	foldShown = 5
	// maxKinds bounds the kinds that are told apart; the rest of a level is one.
	maxKinds = 1024
)

// folds counts lines by their kind and lets a few of each through.
type folds struct {
	out slog.Handler // static; writes what is said of the others

	mu sync.Mutex
	// Guarded by mu.
	kinds    map[kind]*window
	finished bool
}

// kind is what lines of one storm have in common.
type kind struct {
	level   slog.Level
	message string
	about   subject
}

// window is the present one of a kind.
type window struct {
	left   int // lines that may still be shown
	folded int
	timer  *time.Timer
}

func newFolds(out slog.Handler) *folds {
	return &folds{out: out, kinds: make(map[kind]*window)}
}

// show reports whether a line is to be written, and counts it if not.
func (f *folds) show(level slog.Level, message string, about subject) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.finished {
		return true
	}
	k := kind{level, message, about}
	w := f.kinds[k]
	if w == nil && len(f.kinds) >= maxKinds {
		k = kind{level: named(level)}
		w = f.kinds[k]
	}
	if w == nil {
		w = &window{left: foldShown}
		w.timer = time.AfterFunc(foldWindow, func() { f.turn(k, w) })
		f.kinds[k] = w
	}
	if w.left > 0 {
		w.left--
		return true
	}
	w.folded++
	return false
}

// turn ends the window w of a kind. While there are lines to fold, another
// follows; else the kind is forgotten.
func (f *folds) turn(k kind, w *window) {
	f.mu.Lock()
	more := w.folded
	if f.finished || more == 0 {
		if f.kinds[k] == w {
			delete(f.kinds, k)
		}
		f.mu.Unlock()
		return
	}
	w.left, w.folded = 1, 0
	w.timer.Reset(foldWindow)
	f.mu.Unlock()
	f.say(k, more)
}

// finish says what was folded in the windows that are open, and folds no more.
func (f *folds) finish() {
	f.mu.Lock()
	kinds := f.kinds
	f.kinds, f.finished = nil, true
	var left []kind
	for k, w := range kinds {
		w.timer.Stop()
		if w.folded > 0 {
			left = append(left, k)
		}
	}
	f.mu.Unlock()
	slices.SortFunc(left, func(a, b kind) int {
		return strings.Compare(a.message+string(a.about), b.message+string(b.about))
	})
	for _, k := range left {
		f.say(k, kinds[k].folded)
	}
}

// say writes that more lines of a kind came than were shown.
func (f *folds) say(k kind, more int) {
	r := slog.NewRecord(time.Now(), k.level, "more lines of one kind came than are shown", 0)
	if k.message == "" {
		r.AddAttrs(slog.String("kind", "any other"))
	} else {
		r.AddAttrs(slog.String("kind", cut(k.message)))
	}
	r.AddAttrs(k.about.attrs()...)
	r.AddAttrs(slog.Int("more", more), slog.String("within", foldWindow.String()))
	f.out.Handle(context.Background(), r)
}

// named is the nearest level below that has a name, so that the levels of
// kinds that are not told apart are few.
func named(l slog.Level) slog.Level {
	return max(min(l-l%4, slog.LevelError), slog.LevelDebug)
}

// subjects are the attributes by which lines of one message are told apart:
// their values come from the policy, never from a client.
var subjects = []string{"listener", "upstream", "limit", "certificate", "part"}

// subject is what a line is about: the text key=value of each of its subjects,
// ended by a line feed.
type subject string

func (s subject) with(a slog.Attr) subject {
	if a.Value.Kind() == slog.KindLogValuer || !slices.Contains(subjects, a.Key) {
		return s
	}
	// Cut, so that a kind is bounded too.
	value := strings.ReplaceAll(cut(a.Value.String()), "\n", " ")
	return s + subject(a.Key+"="+value+"\n")
}

func (s subject) attrs() (attrs []slog.Attr) {
	for line := range strings.Lines(string(s)) {
		key, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
		attrs = append(attrs, slog.String(key, value))
	}
	return attrs
}

package logging

import (
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"relayedge/internal/testlog"
)

// page is what was logged, line by line.
type page struct {
	testlog.Log
	taken int // bytes
}

// take returns the lines since the last take.
func (p *page) take(t *testing.T) (lines []map[string]string) {
	t.Helper()
	synctest.Wait()
	all := p.String()
	for line := range strings.Lines(all[p.taken:]) {
		fields, err := strict(strings.TrimSuffix(line, "\n"))
		if err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		lines = append(lines, fields)
	}
	p.taken = len(all)
	return lines
}

// folding runs f in synthetic time with a logger of the level info.
func folding(t *testing.T, f func(t *testing.T, log *slog.Logger, p *page, finish func())) {
	synctest.Test(t, func(t *testing.T) {
		p := new(page)
		log, finish := New(Config{Level: "debug", Format: "text"}, p)
		f(t, log, p, finish)
		finish()
	})
}

const summary = "more lines of one kind came than are shown"

func TestStormIsFolded(t *testing.T) {
	folding(t, func(t *testing.T, log *slog.Logger, p *page, _ func()) {
		storm := func(n int) {
			for i := range n {
				log.Error("it failed", "error", fmt.Errorf("fault %d", i), "upstream", "relay")
			}
		}
		wantSummary := func(lines []map[string]string, more int) {
			t.Helper()
			if len(lines) != 1 {
				t.Fatalf("%d lines, want the summary alone: %v", len(lines), lines)
			}
			if l := lines[0]; l["msg"] != summary || l["kind"] != "it failed" || l["upstream"] != "relay" || l["more"] != strconv.Itoa(more) || l["level"] != "ERROR" || l["within"] != "10s" {
				t.Errorf("the summary is %v, want %d more", l, more)
			}
		}
		storm(foldShown)
		if got := p.take(t); len(got) != foldShown {
			t.Errorf("%d lines of a few", len(got))
		}
		storm(1000)
		time.Sleep(foldWindow - time.Nanosecond)
		if got := p.take(t); len(got) != 0 {
			t.Errorf("lines within the window: %v", got)
		}
		time.Sleep(time.Nanosecond)
		wantSummary(p.take(t), 1000)

		// While it lasts, one line of it is shown in each window.
		storm(50)
		if got := p.take(t); len(got) != 1 || got[0]["error"] != "fault 0" {
			t.Errorf("in the window behind a full one: %v", got)
		}
		time.Sleep(foldWindow)
		wantSummary(p.take(t), 49)

		// A window without anything to fold ends it.
		storm(1)
		time.Sleep(foldWindow)
		if got := p.take(t); len(got) != 1 || got[0]["msg"] != "it failed" {
			t.Errorf("one line alone: %v", got)
		}
		storm(foldShown)
		if got := p.take(t); len(got) != foldShown {
			t.Errorf("%d lines after the storm", len(got))
		}
		time.Sleep(foldWindow)
		if got := p.take(t); len(got) != 0 {
			t.Errorf("a summary of nothing: %v", got)
		}
	})
}

// Level, message and subjects tell kinds apart; nothing else does.
func TestKinds(t *testing.T) {
	for _, row := range []struct {
		name  string
		say   func(log *slog.Logger, i int)
		kinds int
	}{
		{"an id", func(l *slog.Logger, i int) { l.Info("a", "id", i) }, 1},
		{"an error", func(l *slog.Logger, i int) { l.Info("a", "error", fmt.Errorf("%d", i)) }, 1},
		{"a message", func(l *slog.Logger, i int) { l.Info("a" + strconv.Itoa(i%3)) }, 3},
		{"a level", func(l *slog.Logger, i int) {
			l.Log(t.Context(), []slog.Level{slog.LevelInfo, slog.LevelWarn, slog.LevelError}[i%3], "a")
		}, 3},
		{"a listener", func(l *slog.Logger, i int) { l.Info("a", "listener", strconv.Itoa(i%3)) }, 3},
		{"an upstream", func(l *slog.Logger, i int) { l.Info("a", "upstream", strconv.Itoa(i%3)) }, 3},
		{"a limit", func(l *slog.Logger, i int) { l.Info("a", "limit", strconv.Itoa(i%3)) }, 3},
		{"a certificate", func(l *slog.Logger, i int) { l.With("certificate", strconv.Itoa(i%3)).Info("a") }, 3},
		{"a part", func(l *slog.Logger, i int) { l.With("part", strconv.Itoa(i%3)).Info("a") }, 3},
		{"a listener in a group", func(l *slog.Logger, i int) { l.WithGroup("g").Info("a", "listener", strconv.Itoa(i%3)) }, 1},
		{"a listener of a group", func(l *slog.Logger, i int) { l.WithGroup("g").With("listener", strconv.Itoa(i%3)).Info("a") }, 1},
		{"a listener that values itself", func(l *slog.Logger, i int) { l.Info("a", "listener", valuer(strconv.Itoa(i%3))) }, 1},
	} {
		t.Run(row.name, func(t *testing.T) {
			folding(t, func(t *testing.T, log *slog.Logger, p *page, finish func()) {
				const lines = 60
				for i := range lines {
					row.say(log, i)
				}
				if got := p.take(t); len(got) != row.kinds*foldShown {
					t.Errorf("%d lines are shown, want %d kinds' %d", len(got), row.kinds, foldShown)
				}
				finish()
				more := 0
				for _, l := range p.take(t) {
					n, _ := strconv.Atoi(l["more"])
					more += n
				}
				if more != lines-row.kinds*foldShown {
					t.Errorf("%d are told of at the end, want %d", more, lines-row.kinds*foldShown)
				}
			})
		})
	}
}

// What is asked for at the level debug comes, all of it.
func TestDebugIsNotFolded(t *testing.T) {
	folding(t, func(t *testing.T, log *slog.Logger, p *page, _ func()) {
		for range 100 {
			log.Debug("connection ended")
		}
		if got := p.take(t); len(got) != 100 {
			t.Errorf("%d of 100 lines", len(got))
		}
	})
}

// Kinds are remembered up to a number; beyond it nothing is lost either.
func TestKindsAreBounded(t *testing.T) {
	folding(t, func(t *testing.T, log *slog.Logger, p *page, finish func()) {
		const kinds = maxKinds + 500
		for i := range kinds {
			log.Warn("message " + strconv.Itoa(i))
		}
		log.Log(t.Context(), slog.LevelWarn+1, "between two levels")
		folds := log.Handler().(*handler).folds
		remembered := func() int {
			folds.mu.Lock()
			defer folds.mu.Unlock()
			return len(folds.kinds)
		}
		if n := remembered(); n != maxKinds+1 {
			t.Errorf("%d kinds are remembered", n)
		}
		if got := p.take(t); len(got) != maxKinds+foldShown {
			t.Errorf("%d lines of %d", len(got), kinds)
		}
		time.Sleep(foldWindow)
		got := p.take(t)
		if len(got) != 1 || got[0]["kind"] != "any other" || got[0]["more"] != strconv.Itoa(kinds+1-maxKinds-foldShown) {
			t.Errorf("the rest is told as %v", got)
		}
		time.Sleep(foldWindow)
		if got := p.take(t); len(got) != 0 {
			t.Errorf("a summary of nothing: %v", got)
		}
		if n := remembered(); n != 0 {
			t.Errorf("%d kinds are remembered for nothing", n)
		}
	})
}

// At the end what was folded is told, and what comes later is not folded.
func TestFinish(t *testing.T) {
	folding(t, func(t *testing.T, log *slog.Logger, p *page, finish func()) {
		for range 7 {
			log.Warn("b", "listener", "public")
			log.Info("a")
		}
		log.Info("once")
		p.take(t)
		finish()
		got := p.take(t)
		if len(got) != 2 || got[0]["kind"] != "a" || got[1]["kind"] != "b" || got[1]["listener"] != "public" || got[1]["level"] != "WARN" || got[0]["more"] != "2" {
			t.Errorf("the end tells %v", got)
		}
		for range 20 {
			log.Info("a")
		}
		time.Sleep(2 * foldWindow)
		if got := p.take(t); len(got) != 20 {
			t.Errorf("%d lines of 20 after the end", len(got))
		}
		finish()
		if got := p.take(t); len(got) != 0 {
			t.Errorf("a second end tells %v", got)
		}
	})
}

// However many log at once, every line is shown or counted.
func TestNothingIsLost(t *testing.T) {
	p := new(page)
	log, finish := New(Config{Level: "info", Format: "text"}, p)
	var tasks sync.WaitGroup
	for range 8 {
		tasks.Go(func() {
			for i := range 500 {
				log.Info("message "+strconv.Itoa(i%4), "listener", "public")
			}
		})
	}
	tasks.Wait()
	finish()
	total := 0
	for line := range strings.Lines(p.String()) {
		fields, err := strict(strings.TrimSuffix(line, "\n"))
		if err != nil {
			t.Fatal(err)
		}
		if more, err := strconv.Atoi(fields["more"]); err == nil {
			total += more
		} else {
			total++
		}
	}
	if total != 8*500 {
		t.Errorf("%d of %d lines are accounted for", total, 8*500)
	}
}

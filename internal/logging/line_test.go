package logging

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"
)

// strict reads one line of the format text: words key=value, divided by one
// space; a key or value in quotes is a Go string, a bare one holds no space, no
// quote, no equals sign and nothing that is not to be seen.
func strict(line string) (map[string]string, error) {
	fields := map[string]string{}
	word := func() (string, error) {
		if strings.HasPrefix(line, `"`) {
			quoted, err := strconv.QuotedPrefix(line)
			if err != nil {
				return "", fmt.Errorf("%w at %q", err, line)
			}
			line = line[len(quoted):]
			return strconv.Unquote(quoted)
		}
		end := strings.IndexAny(line, "= ")
		if end < 0 {
			end = len(line)
		}
		bare := line[:end]
		line = line[end:]
		if strings.ContainsRune(bare, '"') {
			return "", fmt.Errorf("a quote in the bare word %q", bare)
		}
		return bare, nil
	}
	for {
		key, err := word()
		if err != nil {
			return nil, err
		}
		if _, twice := fields[key]; twice || key == "" {
			return nil, fmt.Errorf("the key %q is empty or stands twice", key)
		}
		if !strings.HasPrefix(line, "=") {
			return nil, fmt.Errorf("no value behind %q", key)
		}
		line = line[1:]
		if fields[key], err = word(); err != nil {
			return nil, err
		}
		if line == "" {
			return fields, nil
		}
		if line[0] != ' ' {
			return nil, fmt.Errorf("%q behind the value of %q", line, key)
		}
		line = line[1:]
	}
}

func strictJSON(line string) (map[string]string, error) {
	var values map[string]any
	d := json.NewDecoder(strings.NewReader(line))
	if err := d.Decode(&values); err != nil {
		return nil, err
	}
	if d.More() {
		return nil, errors.New("more than one value")
	}
	fields := map[string]string{}
	for k, v := range values {
		fields[k] = fmt.Sprint(v)
	}
	return fields, nil
}

// visible says what of a line is neither to be seen nor its one line feed.
func visible(line string) error {
	text, ended := strings.CutSuffix(line, "\n")
	if !ended {
		return errors.New("no line feed at the end")
	}
	if !utf8.ValidString(text) {
		return errors.New("no UTF-8")
	}
	for _, r := range text {
		if !unicode.IsPrint(r) {
			return fmt.Errorf("%U stands in it", r)
		}
	}
	return nil
}

var formats = []struct {
	name  string
	parse func(string) (map[string]string, error)
}{{"text", strict}, {"json", strictJSON}}

// hostile are values as clients might choose them.
var hostile = []string{
	"", " ", "a b", `"`, `""`, `a"b`, `\`, `\n`, "a\nb", "\r\nlevel=ERROR msg=forged", "\x00", "\x1b[31mred\x1b[0m", "\x07", "\t",
	"\x7f", "a\x7fb c", "a\x7fb\x7f", `\x7f` + "\x7f", "\x7f\x7f=\x7f", "\u0085", "\u009b31m", "\u0080\u009f", "\u2028", "\u2029", "\u202e\u2066", "\u00ad", "\u200b", "\ufeff", "\U000e0041",
	"\x85", "\xff\xfe", "a\xc3", "\xed\xa0\x80", "\ufffd", "a,b", "a=b", "=", "{}", `{"a":1}`, "'", "<script>&", "日本", "é", "🙂", "\U0001f1e9\U0001f1ea", "null", "[]", "%s%n",
	"relay.example.org\" client=192.0.2.1", "x\nclient=192.0.2.1",
}

// plainly is a value as a format can tell it: JSON has no bytes that are no text.
func plainly(format, s string) string {
	if format == "json" {
		return string([]rune(s)) // each such byte by itself
	}
	return s
}

// Whatever stands on a line, and wherever, is read back from one line.
func TestOneEventIsOneLine(t *testing.T) {
	for _, f := range formats {
		for _, v := range hostile {
			for _, row := range []struct {
				where, key string
				log        func(*slog.Logger)
			}{
				{"a value", "name", func(l *slog.Logger) { l.Debug("said", "name", v, "last", "x") }},
				{"the last value", "name", func(l *slog.Logger) { l.Debug("said", "first", "x", "name", v) }},
				{"an error", "error", func(l *slog.Logger) { l.Debug("said", "error", errors.New(v)) }},
				{"the message", "msg", func(l *slog.Logger) { l.Debug(v) }},
				{"a value of With", "name", func(l *slog.Logger) { l.With("name", v).Debug("said") }},
				{"a key", "k" + v, func(l *slog.Logger) { l.Debug("said", "k"+v, v) }},
				{"a list", "", func(l *slog.Logger) { l.Debug("said", "names", []string{v, v}) }},
				{"a struct", "", func(l *slog.Logger) { l.Debug("said", "names", struct{ A, B any }{v, []byte(v)}) }},
				{"what valued itself", "name", func(l *slog.Logger) { l.Debug("said", "name", valuer(v)) }},
				{"a member", "", func(l *slog.Logger) { l.Debug("said", slog.Group("g", "name", v)) }},
			} {
				var out bytes.Buffer
				log, _ := New(Config{Level: "debug", Format: f.name}, &out)
				row.log(log)
				line := out.String()
				if err := visible(line); err != nil {
					t.Errorf("%s, %q as %s: %v: %q", f.name, v, row.where, err, line)
					continue
				}
				got, err := f.parse(strings.TrimSuffix(line, "\n"))
				if err != nil {
					t.Errorf("%s, %q as %s: %v in %s", f.name, v, row.where, err, line)
					continue
				}
				if row.key != "" && got[plainly(f.name, row.key)] != plainly(f.name, v) {
					t.Errorf("%s, %q as %s is read back as %q from %s", f.name, v, row.where, got[row.key], line)
				}
			}
		}
	}
}

type valuer string

func (v valuer) LogValue() slog.Value { return slog.StringValue(string(v)) }

// The strict reader is worth as much as what it refuses.
func TestStrictReaderRefuses(t *testing.T) {
	for _, line := range []string{"", "a", "a=b c", "a=b  c=d", `a="b`, `a="b"c`, `a=b"c"`, "a=b a=c", "a=b=c", "=b", "a=b "} {
		if got, err := strict(line); err == nil {
			t.Errorf("%q is read as %q", line, got)
		}
	}
	if got, err := strict(`a=b "c d"="e\nf" g=`); err != nil || got["c d"] != "e\nf" {
		t.Errorf("%q, %v", got, err)
	}
}

func FuzzLine(f *testing.F) {
	for _, v := range hostile {
		f.Add(v, v)
	}
	f.Fuzz(func(t *testing.T, message, value string) {
		for _, format := range formats {
			var out bytes.Buffer
			log, _ := New(Config{Level: "debug", Format: format.name}, &out)
			log.Debug(message, "name", value)
			if err := visible(out.String()); err != nil {
				t.Fatalf("%s: %v: %q", format.name, err, out.String())
			}
			got, err := format.parse(strings.TrimSuffix(out.String(), "\n"))
			if err != nil {
				t.Fatalf("%s: %v in %s", format.name, err, out.String())
			}
			if len(message) <= maxText && len(value) <= maxText && (got["msg"] != plainly(format.name, message) || got["name"] != plainly(format.name, value)) {
				t.Fatalf("%s: read back as %q", format.name, got)
			}
		}
	})
}

// A value is bounded, and cut between two characters.
func TestLongValuesAreCut(t *testing.T) {
	for _, v := range []string{strings.Repeat("a", maxText), strings.Repeat("a", maxText+1), strings.Repeat("a", maxText-1) + "日本", strings.Repeat("\x80", maxText+9)} {
		for _, log := range []func(*slog.Logger){
			func(l *slog.Logger) { l.Debug("said", "name", v) },
			func(l *slog.Logger) { l.Debug("said", "name", errors.New(v)) },
			func(l *slog.Logger) { l.Debug("said", "name", valuer(v)) },
			func(l *slog.Logger) { l.With("name", v).Debug("said") },
		} {
			var out bytes.Buffer
			l, _ := New(Config{Level: "debug", Format: "text"}, &out)
			log(l)
			got, err := strict(strings.TrimSuffix(out.String(), "\n"))
			if err != nil {
				t.Fatal(err)
			}
			if len(v) <= maxText {
				if got["name"] != v {
					t.Error("a value that fits is changed")
				}
				continue
			}
			text, note, _ := strings.Cut(got["name"], "…")
			if len(text) > maxText || len(text) < maxText-utf8.UTFMax || !strings.HasPrefix(v, text) || utf8.ValidString(v) != utf8.ValidString(text) || note != fmt.Sprintf(" (of %d bytes)", len(v)) {
				t.Errorf("%d bytes are cut to %d, with the note %q", len(v), len(text), note)
			}
		}
	}
}

// What the log section allows is what the logger takes.
func TestLevelsAndFormats(t *testing.T) {
	for _, level := range []string{"debug", "info", "warn", "error"} {
		for _, format := range []string{"text", "json"} {
			var out bytes.Buffer
			log, finish := New(Config{Level: level, Format: format}, &out)
			for _, l := range []slog.Level{slog.LevelDebug, slog.LevelInfo, slog.LevelWarn, slog.LevelError} {
				log.Log(t.Context(), l, l.String())
			}
			finish()
			first, _, _ := strings.Cut(out.String(), "\n")
			if !strings.Contains(first, strings.ToUpper(level)) || strings.HasPrefix(first, "{") != (format == "json") {
				t.Errorf("level %s, format %s begin with %s", level, format, first)
			}
		}
	}
}

// A time is told with its unit, in both formats alike.
func TestDurations(t *testing.T) {
	for format, want := range map[string]string{"text": " after=1m30s\n", "json": `"after":"1m30s"`} {
		var out bytes.Buffer
		log, _ := New(Config{Level: "info", Format: format}, &out)
		log.Info("ended", "after", 90*time.Second)
		if !strings.Contains(out.String(), want) {
			t.Errorf("%s: %s has no %s", format, out.String(), want)
		}
	}
}

// A line below the level costs nothing.
func TestBelowTheLevelIsFree(t *testing.T) {
	var out bytes.Buffer
	log, _ := New(Config{Level: "info", Format: "text"}, &out)
	log = log.With("part", "relay")
	name := strings.Repeat("x", 40)
	if n := testing.AllocsPerRun(100, func() {
		log.LogAttrs(t.Context(), slog.LevelDebug, "connection ended", slog.String("id", name), slog.Int("n", len(name)))
	}); n != 0 || out.Len() != 0 {
		t.Errorf("%v allocations and %d bytes of log", n, out.Len())
	}
}

package status

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode"
)

func TestFormat(t *testing.T) {
	at := time.Date(2030, 2, 3, 4, 5, 6, 7, time.FixedZone("", 3600))
	for _, row := range []struct{ got, want string }{
		{count(0), "0"}, {count(999), "999"}, {count(1000), "1,000"}, {count(1234567), "1,234,567"}, {count(-1234), "-1,234"},
		{size(0), "0 B"}, {size(1023), "1023 B"}, {size(1024), "1.0 KiB"}, {size(1279), "1.2 KiB"}, {size(1<<20 - 1), "1,023.9 KiB"},
		{size(1 << 20), "1.0 MiB"}, {size(5<<40 + 1<<39), "5.5 TiB"}, {size(1 << 60), "1,024.0 PiB"},
		{span(-1), "0 s"}, {span(59), "59 s"}, {span(60), "1 min"}, {span(3599), "59 min"}, {span(3600), "1 h 0 min"},
		{span(86399), "23 h 59 min"}, {span(86400), "1 d 0 h"}, {span(90*86400 + 7200), "90 d 2 h"},
		{tenths(0), "0.0"}, {tenths(12345), "1,234.5"},
		{inForce(Limit{Value: 0, Off: true}), "off"}, {inForce(Limit{Value: 0}), "0"}, {inForce(Limit{Value: 10000}), "10,000"},
		{day(at), "2030-02-03"}, {clock(at), "03:05:06"},
		{capped(Capped{}), "None."},
		{capped(Capped{Hosts: 1}), "1 host and 0 sites have as many connections as they may."},
		{capped(Capped{Hosts: 2, Sites: 1}), "2 hosts and 1 site have as many connections as they may."},
		{plain("a\x1b[2Jb\u0085\u202ec\td"), "a\ufffd[2Jb\ufffd\ufffdc\ufffdd"},
	} {
		if row.got != row.want {
			t.Errorf("%q, want %q", row.got, row.want)
		}
	}
	for _, row := range []struct {
		l    Limit
		want int64
	}{
		{Limit{Value: 3}, 0}, {Limit{Value: 3, Used: new(int64(2))}, 66}, {Limit{Value: 0, Used: new(int64(2))}, 0}, {Limit{Value: 2, Used: new(int64(3))}, 150},
	} {
		if got := percent(row.l); got != row.want {
			t.Errorf("%+v: %d", row.l, got)
		}
	}
}

func TestExpires(t *testing.T) {
	const day = 86400
	for _, row := range []struct {
		source      string
		left        int64
		text, grade string
	}{
		{"files", 90 * day, "in 90 d 0 h", "ok"},
		{"files", 21 * day, "in 21 d 0 h", "ok"},
		{"files", 21*day - 1, "in 20 d 23 h", "soon"},
		{"acme", 7 * day, "in 7 d 0 h", "soon"},
		{"acme", 7*day - 1, "in 6 d 23 h", "bad"},
		{"self_issued", 3600, "in 1 h 0 min", "ok"}, // it is made anew by itself
		{"self_issued", 0, "expired", "bad"},
		{"files", -5, "expired", "bad"},
	} {
		text, grade := expires(Certificate{Source: row.source, NotAfter: new(time.Now()), ExpiresInSecs: row.left})
		if text != row.text || grade != row.grade {
			t.Errorf("%s with %d: %s, %s", row.source, row.left, text, grade)
		}
	}
	if text, grade := expires(Certificate{Source: "acme"}); text != "not to be had yet" || grade != "bad" {
		t.Errorf("%s, %s", text, grade)
	}
}

func TestSparkline(t *testing.T) {
	for _, row := range []struct {
		values []int
		n      int
		want   string
	}{
		{nil, 5, ""},
		{[]int{0, 0}, 5, "▁▁"},
		{[]int{0, 7, 3}, 5, "▁█▄"},
		{[]int{1, 7, 0, 0, 2, 3}, 3, "█▁▄"},
	} {
		if got := sparkline(row.values, row.n); got != row.want {
			t.Errorf("%v: %s, want %s", row.values, got, row.want)
		}
	}
}

func TestCut(t *testing.T) {
	for _, row := range []struct {
		line string
		wide int
		want string
	}{{"abc", 0, "abc"}, {"abc", 3, "abc"}, {"abcd", 3, "ab…"}, {"äöüß", 3, "äö…"}, {"ab", 1, "…"}} {
		if got := cut(row.line, row.wide); got != row.want {
			t.Errorf("%q", got)
		}
	}
}

// The terminal is told everything that the document has, and obeys none of it.
// The document says the same in every spelling, and no character of it is one that a
// terminal obeys.
func TestDocumentOnATerminal(t *testing.T) {
	name := "a\x1b[2J\x7f\u0085\u009b31m\u200b\u202e\u2028\U000e0041 é 漢\t\"\\<"
	s := Status{Version: name, Upstreams: []Upstream{{Name: name, Addresses: []Address{{Address: name}}}}}
	text, err := Document(s)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range string(text) {
		if r != '\n' && !unicode.IsPrint(r) {
			t.Errorf("%U stands in it", r)
		}
	}
	var got Status
	if err := json.Unmarshal(text, &got); err != nil || !reflect.DeepEqual(got.Upstreams, s.Upstreams) || got.Version != name {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestLines(t *testing.T) {
	s := example()
	text := strings.Join(Lines(s, 0, 0), "\n") + "\n"
	if golden := read(t, "status.golden", text); text != golden {
		t.Errorf("%s\nwant\n%s", text, golden)
	}
	for _, l := range Lines(s, 40, 12) {
		if n := len([]rune(l)); n > 40 {
			t.Errorf("%d characters: %s", n, l)
		}
	}
	if n := len(Lines(s, 40, 12)); n != 12 {
		t.Errorf("%d lines", n)
	}
	s.Listeners[0].Name = "\x1b]0;owned\x07"
	if text := strings.Join(Lines(s, 0, 0), ""); strings.ContainsAny(text, "\x1b\x07\n") {
		t.Errorf("a terminal would obey %q", text)
	}
	quiet := Status{Ready: true}
	if text := strings.Join(Lines(quiet, 0, 0), "\n"); !strings.Contains(text, "nobody so far") || strings.Contains(text, "CERTIFICATE") {
		t.Errorf("%s", text)
	}
}

package certs

import (
	"crypto/x509"
	"math/big"
	"strings"
	"testing"
	"time"

	"github.com/mholt/acmez/v3/acme"
)

const day = 24 * time.Hour

func TestRenewAt(t *testing.T) {
	from := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	leaf := func(life time.Duration) *x509.Certificate {
		return &x509.Certificate{SerialNumber: big.NewInt(255), NotBefore: from, NotAfter: from.Add(life)}
	}
	for _, tt := range []struct {
		name string
		life time.Duration
		r    record
		want time.Duration // from the beginning
	}{
		{"a third is left", 90 * day, record{}, 60 * day},
		{"half of a short life", 6 * day, record{}, 3 * day},
		{"just long", 10 * day, record{}, 10*day - 10*day/3},
		{"the CA's word", 90 * day, record{Serial: "ff", Renew: from.Add(33 * day)}, 33 * day},
		{"the CA's word on another", 90 * day, record{Serial: "fe", Renew: from.Add(33 * day)}, 60 * day},
		{"the CA says too late", 90 * day, record{Serial: "ff", Renew: from.Add(89 * day)}, 90*day - 90*day/20},
		{"too late, short", 5 * day, record{Serial: "ff", Renew: from.Add(5 * day)}, 4 * day},
		{"the CA says at once", 90 * day, record{Serial: "ff", Renew: from.Add(-day)}, 6 * time.Hour},
		{"at once, short", 10 * time.Hour, record{Serial: "ff", Renew: from.Add(-day)}, time.Hour},
	} {
		if got := tt.r.renewAt(leaf(tt.life)).Sub(from); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
	}
}

func TestPauses(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, pauses := range [][]time.Duration{orderPauses, reachPauses} {
		var r record
		for i := range len(pauses) + 3 {
			r.failed(now, pauses, 0, "fault")
			pause := pauses[min(i, len(pauses)-1)]
			if got := r.Next.Sub(now); got < pause*9/10 || got > pause*11/10 {
				t.Errorf("pause %d: %s, want about %s", i, got, pause)
			}
			if r.Failures != i+1 || r.At != now || r.Fault != "fault" {
				t.Errorf("record %+v", r)
			}
		}
	}
	// Five failed validations an hour, of two challenges each.
	first := orderPauses[0] + orderPauses[1] + orderPauses[2]
	if first*9/10 < time.Hour {
		t.Errorf("a fourth order within %s", first)
	}
	var r record
	r.failed(now, orderPauses, 7*day, "")
	if got := r.Next.Sub(now); got != 7*day {
		t.Errorf("the CA asked for a week, got %s", got)
	}
	r.failed(now, orderPauses, 400*day, "")
	if got := r.Next.Sub(now); got != maxHold {
		t.Errorf("the CA asked for more than a year, got %s", got)
	}
	r = record{}
	r.failed(now, orderPauses, time.Second, "")
	if got := r.Next.Sub(now); got < 50*time.Second {
		t.Errorf("a shorter wish of the CA's shortens the pause to %s", got)
	}
}

// A clock that was a year ahead when an order failed, and is right again, must
// not hold the next one back for a year.
func TestSettle(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, tt := range []struct {
		name     string
		at, next time.Duration // from now
		want     time.Duration
	}{
		{"in order", -time.Minute, time.Hour, time.Hour},
		{"over", -time.Hour, -time.Minute, -time.Minute},
		{"a little ahead", time.Hour, 2 * time.Hour, 2 * time.Hour},
		{"a year ahead", 365 * day, 365*day + 3*time.Hour, 3 * time.Hour},
		{"nonsense ahead", 365 * day, 365*day - time.Hour, 0},
		{"far ahead", 365 * day, 3650 * day, maxHold},
	} {
		r := record{At: now.Add(tt.at), Next: now.Add(tt.next)}
		if r.settle(now); r.Next.Sub(now) != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, r.Next.Sub(now), tt.want)
		}
	}
	var empty record
	if empty.settle(now); !empty.Next.IsZero() {
		t.Error("an empty record holds something back")
	}
}

func TestNoted(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	leaf := &x509.Certificate{SerialNumber: big.NewInt(255), NotBefore: now, NotAfter: now.Add(90 * day)}
	info := func(from, to, chosen, ask time.Duration) *acme.RenewalInfo {
		i := &acme.RenewalInfo{SelectedTime: now.Add(chosen)}
		i.SuggestedWindow.Start, i.SuggestedWindow.End = now.Add(from), now.Add(to)
		if ask != 0 {
			i.RetryAfter = new(now.Add(ask))
		}
		return i
	}
	for _, tt := range []struct {
		name   string
		before record
		info   *acme.RenewalInfo
		renew  time.Duration // 0: the CA has no word
		ask    time.Duration
	}{
		{"first", record{}, info(58*day, 62*day, 59*day, 8*time.Hour), 59 * day, 8 * time.Hour},
		{"chosen before and still in the window", record{Serial: "ff", Renew: now.Add(61 * day)}, info(58*day, 62*day, 59*day, 8*time.Hour), 61 * day, 8 * time.Hour},
		{"before the window", record{Serial: "ff", Renew: now.Add(57 * day)}, info(58*day, 62*day, 59*day, 0), 59 * day, askInterval},
		{"the window was moved forward", record{Serial: "ff", Renew: now.Add(61 * day)}, info(-day, -time.Hour, -2*time.Hour, time.Hour), -2 * time.Hour, time.Hour},
		{"chosen for another certificate", record{Serial: "fe", Renew: now.Add(61 * day)}, info(58*day, 62*day, 59*day, time.Hour), 59 * day, time.Hour},
		{"asked too often", record{}, info(58*day, 62*day, 59*day, time.Second), 59 * day, minAskInterval},
		{"asked too seldom", record{}, info(58*day, 62*day, 59*day, 300*day), 59 * day, maxAskInterval},
		{"no window", record{Serial: "ff", Renew: now.Add(61 * day)}, &acme.RenewalInfo{}, 0, askInterval},
		{"not supported", record{}, nil, 0, askInterval},
	} {
		r := tt.before
		r.noted(leaf, tt.info, now)
		want := now.Add(tt.renew)
		if tt.renew == 0 {
			want = time.Time{}
		}
		if !r.Renew.Equal(want) || r.AskNext.Sub(now) != tt.ask || r.Serial != "ff" {
			t.Errorf("%s: renew %v, want %v; ask in %s, want %s", tt.name, r.Renew, want, r.AskNext.Sub(now), tt.ask)
		}
	}
}

func TestRecordOutlastsTheProcess(t *testing.T) {
	storage, ctx, now := newFolder(t.TempDir()), t.Context(), time.Now()
	want := record{Failures: 3, At: now, Next: now.Add(time.Hour), Fault: "f", Serial: "ff", Renew: now.Add(day), AskNext: now.Add(time.Hour)}
	try(t, want.store(ctx, storage, "a/b.json"))
	got := loadRecord(ctx, newFolder(storage.path), "a/b.json", now)
	if got.Failures != 3 || !got.At.Equal(want.At) || !got.Next.Equal(want.Next) || got.Fault != "f" || got.Serial != "ff" || !got.Renew.Equal(want.Renew) || !got.AskNext.Equal(want.AskNext) {
		t.Errorf("%+v, want %+v", got, want)
	}
	for _, text := range []string{"", "{", "[]", `{"failures":-5}`, strings.Repeat(" ", maxValueBytes+1)} {
		try(t, storage.Store(ctx, "bad.json", []byte(text)))
		if got := loadRecord(ctx, storage, "bad.json", now); got != (record{}) {
			t.Errorf("%.20q is read as %+v", text, got)
		}
	}
}

func TestTheCAsWords(t *testing.T) {
	for _, tt := range []struct{ words, want string }{
		{"plain", "plain"},
		{"two\nlines\r\n and\ttabs", "two lines and tabs"},
		{"\x1b[31mred\x07\u202e", "?[31mred??"},
		{strings.Repeat("é", 400), strings.Repeat("é", 250) + "…"},
		{"\xff", "\ufffd"},
	} {
		if got := quoted(tt.words); got != tt.want {
			t.Errorf("quoted(%q) = %q, want %q", tt.words, got, tt.want)
		}
	}
	at, ok := retryTime("too many certificates (5) already issued, retry after 2026-07-31 12:34:56 UTC: see https://ca.example")
	if want := time.Date(2026, 7, 31, 12, 34, 56, 0, time.UTC); !ok || !at.Equal(want) {
		t.Errorf("%v, %v", at, ok)
	}
	for _, words := range []string{"", "retry after 2026", "retry after 2026-99-31 12:34:56 UTC"} {
		if at, ok := retryTime(words); ok {
			t.Errorf("%q: %v", words, at)
		}
	}
}

func TestParseRetryAfter(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for value, want := range map[string]time.Duration{
		"": 0, "0": 0, "120": 2 * time.Minute, "-1": 0, "99999999999999": 0, "soon": 0,
		"Thu, 01 Jan 2026 01:00:00 GMT": time.Hour, "Wed, 31 Dec 2025 23:00:00 GMT": 0,
	} {
		if got := parseRetryAfter(value, now); got != want {
			t.Errorf("%q: %s, want %s", value, got, want)
		}
	}
}

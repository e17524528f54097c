package status

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// How a figure is written. The page's script writes the same in the browser, so
// all of it is arithmetic with integers.

// count groups the digits of n by thousands.
func count[N int | int64 | uint64](n N) string {
	digits := strconv.FormatInt(int64(n), 10)
	sign := ""
	if digits[0] == '-' {
		sign, digits = "-", digits[1:]
	}
	var b strings.Builder
	for i, d := range digits {
		if i > 0 && (len(digits)-i)%3 == 0 {
			b.WriteByte(',')
		}
		b.WriteRune(d)
	}
	return sign + b.String()
}

// size is n bytes in the unit that leaves at least 1 of it, with tenths cut off.
func size(n uint64) string {
	if n < 1<<10 {
		return strconv.FormatUint(n, 10) + " B"
	}
	units := [...]string{"KiB", "MiB", "GiB", "TiB", "PiB"}
	i := 0
	for unit := n >> 10; unit >= 1<<10 && i < len(units)-1; unit >>= 10 {
		i++
	}
	unit := uint64(1) << (10 * (i + 1))
	return fmt.Sprintf("%s.%d %s", count(n/unit), n%unit*10/unit, units[i])
}

// span is a time in its two largest units.
func span(secs int64) string {
	switch {
	case secs < 60:
		return fmt.Sprintf("%d s", max(secs, 0))
	case secs < 3600:
		return fmt.Sprintf("%d min", secs/60)
	case secs < 86400:
		return fmt.Sprintf("%d h %d min", secs/3600, secs%3600/60)
	}
	return fmt.Sprintf("%s d %d h", count(secs/86400), secs%86400/3600)
}

// tenths is n/10 with one decimal.
func tenths(n uint64) string { return fmt.Sprintf("%s.%d", count(n/10), n%10) }

// percent is how much of a limit is used, cut off.
func percent(l Limit) int64 {
	if l.Used == nil || l.Value <= 0 {
		return 0
	}
	return *l.Used * 100 / l.Value
}

// inForce is a limit's value.
func inForce(l Limit) string {
	if l.Off {
		return "off"
	}
	return count(l.Value)
}

// expires says when a certificate does, and how good that is: ok, soon or bad.
func expires(c Certificate) (text, grade string) {
	const day = 86400
	switch {
	case c.NotAfter == nil:
		return "not to be had yet", "bad"
	case c.ExpiresInSecs <= 0:
		return "expired", "bad"
	case c.ExpiresInSecs < 7*day && c.Source != "self_issued":
		return "in " + span(c.ExpiresInSecs), "bad"
	case c.ExpiresInSecs < 21*day && c.Source != "self_issued":
		return "in " + span(c.ExpiresInSecs), "soon"
	}
	return "in " + span(c.ExpiresInSecs), "ok"
}

// day and clock are moments in UTC.
func day(t time.Time) string   { return t.UTC().Format("2006-01-02") }
func clock(t time.Time) string { return t.UTC().Format("15:04:05") }

// upDown is a state in words.
func upDown(up bool) string {
	if up {
		return "up"
	}
	return "down"
}

// capped says how many hosts and sites are at their caps.
func capped(c Capped) string {
	if c.Hosts == 0 && c.Sites == 0 {
		return "None."
	}
	return numbered(c.Hosts, "host", "hosts") + " and " + numbered(c.Sites, "site", "sites") + " have as many connections as they may."
}

func numbered(n int, one, more string) string {
	if n == 1 {
		return "1 " + one
	}
	return count(n) + " " + more
}

// hiddenNetworks says why networks are not told.
const hiddenNetworks = "Their networks are not shown, because log.client_addresses is none; with prefix they stand here, as in the log."

// plain is a text without what a terminal obeys.
func plain(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return unicode.ReplacementChar
	}, s)
}

// Document writes the document as indented JSON, of which a terminal obeys nothing
// either: what encoding/json leaves as it is and is not printed, it escapes.
func Document(s Status) ([]byte, error) {
	text, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return nil, err
	}
	out := make([]byte, 0, len(text))
	for _, r := range string(text) { // outside of strings there are printed characters and line ends alone
		switch {
		case r == '\n' || unicode.IsPrint(r):
			out = utf8.AppendRune(out, r)
		default:
			for _, unit := range utf16.AppendRune(nil, r) {
				out = fmt.Appendf(out, `\u%04x`, unit)
			}
		}
	}
	return out, nil
}

package admission

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"
)

func TestReadNetworks(t *testing.T) {
	const src = "\uFEFF192.0.2.1\r\n" +
		"# a comment\n" +
		"\n" +
		"  198.51.100.0/24\t# why\r\n" +
		"::ffff:203.0.113.5\n" +
		"::FFFF:10.0.0.0/104#mapped\n" +
		"#" + "\n" +
		"2001:DB8:0:0::/32\n" +
		"0:0:0:0:0:0:0:1\n" +
		"\t \r\n" +
		"0.0.0.0/0\n::/0\n::ffff:0:0/96\n" +
		"192.0.2.1\n" + // a second time: lists are put together from several
		"2001:db8::1/128"
	want := prefixes("192.0.2.1/32", "198.51.100.0/24", "203.0.113.5/32", "10.0.0.0/8", "2001:db8::/32", "::1/128",
		"0.0.0.0/0", "::/0", "0.0.0.0/0", "192.0.2.1/32", "2001:db8::1/128")
	for name, r := range map[string]io.Reader{"at once": strings.NewReader(src), "byte by byte": iotest.OneByteReader(strings.NewReader(src))} {
		if got, err := ReadNetworks("deny.txt", r); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %v\n%v\nwant\n%v", name, err, got, want)
		}
	}
	long := strings.Repeat("x", 100_000)
	for _, src := range []string{"", "\n\n", "\uFEFF", "# only\r\n#\n", "#" + long, "\uFEFF# " + long + "\n", strings.Repeat(" ", 3) + "#" + long + "\r\n"} {
		if got, err := ReadNetworks("deny.txt", strings.NewReader(src)); err != nil || got == nil || len(got) > 0 {
			t.Errorf("%.20q: %v, %v", src, got, err)
		}
	}
	got, err := ReadNetworks("deny.txt", strings.NewReader("192.0.2.1 # "+long+"\n192.0.2.2\n"))
	if err != nil || !slices.Equal(got, prefixes("192.0.2.1/32", "192.0.2.2/32")) {
		t.Errorf("a long comment: %v, %v", got, err)
	}
}

func TestReadNetworksRefuses(t *testing.T) {
	const notOne = " is not a network; write one like 192.0.2.1, 192.0.2.0/24 or 2001:db8::/32"
	length := func(most int) string {
		return fmt.Sprintf(" has no length that such an address can have; write 0 to %d behind the /", most)
	}
	const zone = " has a zone, which a network has not; take % and what follows it out"
	for line, want := range map[string]string{
		"relay.example.org":         `"relay.example.org"` + notOne,
		"192.0.2":                   `"192.0.2"` + notOne,
		"192.0.2.010":               `"192.0.2.010"` + notOne,
		"192.0.2.0/":                `"192.0.2.0/"` + length(32),
		"/24":                       `"/24"` + notOne,
		"10.0.0.0/33":               `"10.0.0.0/33"` + length(32),
		"10.0.0.0/-1":               `"10.0.0.0/-1"` + length(32),
		"10.0.0.0/+8":               `"10.0.0.0/+8"` + length(32),
		"10.0.0.0/08":               `"10.0.0.0/08"` + length(32),
		"10.0.0.0/255.0.0.0":        `"10.0.0.0/255.0.0.0"` + length(32),
		"2001:db8::/129":            `"2001:db8::/129"` + length(128),
		"10.0.0.1/8":                `"10.0.0.1/8" has bits beyond its length; write 10.0.0.0/8`,
		"::ffff:10.0.0.1/104":       `"::ffff:10.0.0.1/104" has bits beyond its length; write 10.0.0.0/8`,
		"2001:db8::1/32":            `"2001:db8::1/32" has bits beyond its length; write 2001:db8::/32`,
		"::ffff:0.0.0.0/90":         `"::ffff:0.0.0.0/90" is wider than all of IPv4 in IPv6 form; write 0.0.0.0/0, or the IPv6 network that is meant`,
		"fe80::1%eth0":              `"fe80::1%eth0"` + zone,
		"fe80::%2/64":               `"fe80::%2/64"` + zone,
		"fe80::1%2/128":             `"fe80::1%2/128"` + zone,
		"10.0.0.0/8 11.0.0.0/8":     `"10.0.0.0/8 11.0.0.0/8" is more than one network; write one a line, and comments behind #`,
		"10.0.0.0 - 10.0.0.9":       `"10.0.0.0 - 10.0.0.9" is more than one network; write one a line, and comments behind #`,
		"10.0.0.0/8;x":              `"10.0.0.0/8;x"` + length(32),
		"\x1b[2J":                   `"\x1b[2J"` + notOne,
		"\xff\xfe":                  `"\xff\xfe"` + notOne,
		strings.Repeat("1", 61):     `"` + strings.Repeat("1", 60) + `"…` + notOne,
		strings.Repeat("1", 5000):   "a line that long is no network; write one network a line, and comments behind #",
		strings.Repeat(" ", 5000):   "a line that long is no network; write one network a line, and comments behind #",
		"\uFEFF10.0.0.0/8":          `"\ufeff10.0.0.0/8"` + notOne, // only the file has one
		"10.0.0.0/8\r" + "10.0.0.1": `"10.0.0.0/8\r10.0.0.1" is more than one network; write one a line, and comments behind #`,
	} {
		src := "# the list\n192.0.2.0/24\n" + line + "\n"
		got, err := ReadNetworks("etc/deny.txt", strings.NewReader(src))
		if want = "etc/deny.txt:3: " + want; got != nil || err == nil || err.Error() != want {
			t.Errorf("%.40q gives %v\n%v\nwant\n%s", line, got, err, want)
		}
	}
}

func TestReadNetworksTellsAllFaultsInOneGo(t *testing.T) {
	_, err := ReadNetworks("d", strings.NewReader("a\n10.0.0.0/8\nb\r\n\nc"))
	if err == nil || !slices.Equal(places(err), []string{"d:1", "d:3", "d:5"}) {
		t.Errorf("%v", err)
	}
	_, err = ReadNetworks("d", strings.NewReader(strings.Repeat("x\n", 20)))
	if got := places(err); len(got) != 20 || got[19] != "d:20" {
		t.Errorf("20 faults: %v", err)
	}
	_, err = ReadNetworks("d", strings.NewReader(strings.Repeat("x\n", 50_000)))
	lines := strings.Split(err.Error(), "\n")
	if len(lines) != 21 || lines[20] != "d: and 49980 more faults" {
		t.Errorf("50,000 faults: %v", err)
	}
}

// places returns the part before the first space of each line of the error.
func places(err error) (all []string) {
	for line := range strings.Lines(err.Error()) {
		place, _, _ := strings.Cut(line, ": ")
		all = append(all, place)
	}
	return all
}

func TestReadNetworksNamesTheFileThatFails(t *testing.T) {
	broken := errors.New("input/output error")
	for _, before := range []string{"", "10.0.0.0/8\n", "10.0.0.0/8", "#" + strings.Repeat("x", 10_000)} {
		got, err := ReadNetworks("d", io.MultiReader(strings.NewReader(before), iotest.ErrReader(broken)))
		if got != nil || !errors.Is(err, broken) || err.Error() != "d: input/output error" {
			t.Errorf("after %.20q: %v, %v", before, got, err)
		}
	}
}

// endless gives one line for ever, and counts what is taken of it.
type endless struct {
	line  string
	taken int
}

func (e *endless) Read(p []byte) (int, error) {
	for n := 0; n < len(p); {
		took := copy(p[n:], e.line[e.taken%len(e.line):])
		n += took
		e.taken += took
	}
	return len(p), nil
}

func TestReadNetworksIsBounded(t *testing.T) {
	for name, row := range map[string]struct {
		line string
		most int // bytes that are taken
		want string
	}{
		"bytes":    {"# " + strings.Repeat("x", 61) + "\n", 64<<20 + 8192, "d:1048577: the file has more than 67108864 bytes, the most that are read; shorten it, or join networks"},
		"one line": {"#xxxxxxx", 64<<20 + 8192, "d:1: the file has more than 67108864 bytes, the most that are read; shorten it, or join networks"},
		"networks": {"10.0.0.0/8     \n", 16*1_000_000 + 8192, "d:1000001: the file has more than 1000000 networks, the most that are taken; join some"},
	} {
		e := &endless{line: strings.Repeat(row.line, 512)}
		got, err := ReadNetworks("d", e)
		if got != nil || err == nil || err.Error() != row.want {
			t.Errorf("%s: %d networks, %v, want %s", name, len(got), err, row.want)
		}
		if e.taken > row.most {
			t.Errorf("%s: %d bytes were taken, want at most %d", name, e.taken, row.most)
		}
	}
	// The bounds themselves are within.
	networks := strings.Repeat("10.0.0.0/8\n", 1_000_000)
	got, err := ReadNetworks("d", strings.NewReader(networks+strings.Repeat("#", 64<<20-len(networks))))
	if err != nil || len(got) != 1_000_000 {
		t.Errorf("%d networks, %v", len(got), err)
	}
}

// A list of 100,000 lines costs what it holds, in the reader and in the gate.
func TestLongListInReasonableMemory(t *testing.T) {
	const lines = 100_000
	var src strings.Builder
	addr := func(i int) netip.Addr {
		if i%4 == 0 {
			return hostOf(i, i>>3)
		}
		return netip.AddrFrom4([4]byte{byte(1 + i%199), byte(i >> 16), byte(i >> 8), byte(i)})
	}
	for i := range lines {
		fmt.Fprintf(&src, "%v # %d\n", addr(i), i)
	}
	text := src.String()
	used := func() (live, ever int64) {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc), int64(m.TotalAlloc)
	}
	live, ever := used()
	l := DefaultLimits()
	var err error
	if l.Deny, err = ReadNetworks("d", strings.NewReader(text)); err != nil || len(l.Deny) != lines {
		t.Fatalf("%d networks, %v", len(l.Deny), err)
	}
	g := newGate(t, l)
	liveAfter, everAfter := used()
	if n := liveAfter - live; n > 40<<20 {
		t.Errorf("%d bytes stay in use", n)
	}
	if n := everAfter - ever; n > 100<<20 {
		t.Errorf("%d bytes were allocated on the way", n)
	}
	t.Logf("%d bytes a line stay, %d were allocated", (liveAfter-live)/lines, (everAfter-ever)/lines)
	now := time.Now()
	for i := 0; i < lines; i += 997 {
		mustRefuse(t, g, addr(i), now, Denied)
	}
	mustAdmit(t, g, netip.MustParseAddr("203.0.113.1"), now)
	runtime.KeepAlive(text)
}

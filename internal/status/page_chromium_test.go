package status

import (
	"bytes"
	"flag"
	"fmt"
	"image"
	"image/color"
	imagedraw "image/draw"
	"image/png"
	"maps"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"relayedge/internal/testbrowser"
)

var pictures = flag.Bool("pictures", false, "write the pictures of the page into docs/")

// site is a page whose document a test sets.
type site struct {
	*httptest.Server
	document atomic.Pointer[Status]
	away     atomic.Bool // the document is not to be had
}

func newSite(t *testing.T, s Status) *site {
	site := new(site)
	site.document.Store(&s)
	pages := Pages(func() Status { return *site.document.Load() })
	site.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		page := pages[r.URL.Path]
		if page == nil || site.away.Load() {
			http.NotFound(w, r)
			return
		}
		page.ServeHTTP(w, r)
	}))
	t.Cleanup(site.Close)
	return site
}

// look waits until the page shows its document as the script writes it.
func (s *site) look(b *testbrowser.Tab) {
	before := b.Asked(s.URL + "/status")
	b.Go(s.URL + "/")
	b.Eventually(func() string {
		if b.Asked(s.URL+"/status") < before+2 { // the first has been written by then
			return "the page does not ask for its document"
		}
		return ""
	})
}

// busy is a document as a busy edge has it.
func busy() Status {
	now := time.Date(2030, 2, 3, 15, 4, 5, 0, time.UTC)
	r := NewRecorder(now.Add(-30*time.Hour), 3)
	total := Figures{Rejections: make([]uint64, 4)}
	for i := range maxSamples {
		wave := 1 + math.Sin(float64(i)/40)/3 + math.Sin(float64(i)/7)/12
		total.Connections = int(2400 * wave)
		total.Accepted += uint64(80 * wave)
		total.Handshakes += uint64(78 * wave)
		total.BytesIn += uint64(3 << 20 * wave)
		total.BytesOut += uint64(9 << 20 * wave)
		if i > 200 && i < 260 {
			total.Accepted += 400
			total.Rejections[0] += 330
			total.Rejections[1] += uint64(i % 7)
		}
		total.Rejections[2] += uint64(i % 5 / 4)
		r.record(now.Add(time.Duration(i-maxSamples)*step), Figures{total.Connections, total.Accepted, total.Handshakes, total.BytesIn, total.BytesOut, slices.Clone(total.Rejections)})
	}
	s := Status{
		Version: "v1.0.0", Ready: true,
		Handshakes: Handshakes{InFlight: 7},
		Rejections: []Rejection{{Reason: "per_ip_cap"}, {Reason: "connection_rate"}, {Reason: "not_tls"}, {Reason: "rate_limit"}},
		Listeners:  []Listener{{"public", "[::]:443", "tcp", "terminate", total.Connections, false}},
		Upstreams:  []Upstream{{"relay", true, []Address{{"127.0.0.1:7777", true, total.Connections}, {"127.0.0.1:7778", false, 0}}}},
		Certificates: []Certificate{
			{[]string{"relay.example.org"}, "acme", new(now.AddDate(0, 0, 61)), 61 * 86400},
			{[]string{"chat.example.org", "irc.example.org"}, "files", new(now.AddDate(0, 0, 12)), 12 * 86400},
		},
		Limits: []Limit{
			{"max_connections", 10000, false, new(int64(total.Connections))}, {"max_connections_per_ip", 64, false, new(int64(64))},
			{"max_connections_per_ipv6_48", 256, false, new(int64(91))}, {"connection_rate_per_ip", 20, false, nil}, {"max_handshakes", 1024, false, new(int64(7))},
			{"rate_limit_bps", 1 << 20, false, nil}, {"first_byte_timeout_secs", 0, true, nil}, {"drain_secs", 30, false, nil},
		},
		Capped: Capped{Hosts: 3, Shown: true, Networks: []Network{{"203.0.113.0/24", 2, 0, 128}, {"2001:db8:7::/48", 1, 0, 64}}},
	}
	r.Fill(&s, now, total)
	return s
}

// differences has the page loaded anew, as the server writes it, and returns where
// the script has written something else.
const differences = `(async () => {
	const doc = new DOMParser().parseFromString(await (await fetch("/", {cache: "no-store"})).text(), "text/html");
	const wrong = [];
	for (const e of doc.querySelectorAll("[id]")) {
		const mine = document.getElementById(e.id);
		if (["pause", "trouble"].includes(e.id)) continue;
		if (!mine || mine.outerHTML !== e.outerHTML && !e.querySelector("[id]")) wrong.push(e.outerHTML + " and not " + mine?.outerHTML);
	}
	return wrong.join("\n");
})()`

// One browser serves all of these.
func TestPageInChromium(t *testing.T) {
	b := testbrowser.Open(t)
	for _, part := range []struct {
		name string
		test func(*testing.T, *testbrowser.Tab)
	}{
		{"the script writes as the server", scriptWritesAsTheServer}, {"nothing from elsewhere", nothingFromElsewhere},
		{"every screen", everyScreen}, {"keyboard", byKeyboard},
	} {
		t.Run(part.name, func(t *testing.T) {
			b.For(t)
			part.test(t, b)
		})
	}
}

// The script writes what the server does, to the letter, whatever the figures are;
// markup in them is text.
func scriptWritesAsTheServer(t *testing.T, b *testbrowser.Tab) {
	evil := example()
	evil.Ready, evil.Certificates[0].ExpiresInSecs = true, 3*86400
	evil.Listeners[0].Name = `"><script>document.title = "owned"</script><img src=x onerror="document.title = 'owned'">&`
	evil.Upstreams[0].Name, evil.Limits[0].Limit, evil.Capped.Networks[0].Network = evil.Listeners[0].Name, evil.Listeners[0].Name, evil.Listeners[0].Name
	evil.Bytes.In.Minute, evil.Bytes.In.Hour, evil.Bytes.Out.Minute, evil.Bytes.Out.Hour = 1279, 5<<40+1<<39, 1023, 1<<50-1
	quiet := Status{
		Ready: true, Rejections: []Rejection{}, Listeners: []Listener{}, Upstreams: []Upstream{}, Certificates: []Certificate{}, Limits: []Limit{}, Capped: Capped{Hosts: 1, Networks: []Network{}},
	}
	NewRecorder(time.Unix(1_900_000_000, 0), -1).Fill(&quiet, time.Unix(1_900_000_059, 0), Figures{})
	site := newSite(t, quiet)
	for name, s := range map[string]Status{"example": example(), "evil": evil, "busy": busy(), "quiet": quiet} {
		site.document.Store(new(Status{Capped: Capped{Networks: []Network{}}})) // whose page is another one
		b.Go(site.URL + "/")
		site.document.Store(&s)
		b.Eventually(func() string {
			if wrong := testbrowser.Eval[string](b, differences); wrong != "" {
				return name + ": " + wrong
			}
			return ""
		})
	}
	if title := testbrowser.Eval[string](b, "document.title"); title != "relayedge" {
		t.Errorf("the title is %s", title)
	}
}

// Nothing of the page comes from elsewhere, and the browser finds nothing to say of
// it, but where the edge does not answer: that the page says itself.
func nothingFromElsewhere(t *testing.T, b *testbrowser.Tab) {
	site := newSite(t, busy())
	site.look(b)
	if c := b.Complaints(); len(c) > 0 {
		t.Errorf("the browser complains: %q", c)
	}
	if asked := b.AskedElsewhere(site.URL); len(asked) > 0 {
		t.Errorf("the page asks for %q", asked)
	}
	if n := b.Asked(site.URL + "/"); n != 1 {
		t.Errorf("the page was loaded %d times", n)
	}
	trouble := func() string { return testbrowser.Eval[string](b, `document.getElementById("trouble").textContent`) }
	site.away.Store(true)
	b.Eventually(func() string {
		if !strings.HasPrefix(trouble(), "No answer since ") {
			return "the page does not say that there is no answer"
		}
		return ""
	})
	site.away.Store(false)
	b.Eventually(func() string { return trouble() })
}

// small is a picture in the 256 colours that it has most of.
func small(t *testing.T, picture []byte) []byte {
	t.Helper()
	full, err := png.Decode(bytes.NewReader(picture))
	if err != nil {
		t.Fatal(err)
	}
	count := make(map[color.Color]int)
	for y := range full.Bounds().Dy() {
		for x := range full.Bounds().Dx() {
			count[full.At(x, y)]++
		}
	}
	palette := color.Palette(slices.SortedFunc(maps.Keys(count), func(a, b color.Color) int { return count[b] - count[a] }))
	few := image.NewPaletted(full.Bounds(), palette[:min(len(palette), 256)])
	imagedraw.Draw(few, few.Bounds(), full, image.Point{}, imagedraw.Src)
	var out bytes.Buffer
	if err := (&png.Encoder{CompressionLevel: png.BestCompression}).Encode(&out, few); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// faults are what somebody who does not see the page, or not well, would miss.
const faults = `(() => {
	const wrong = [];
	const all = s => [...document.querySelectorAll(s)];
	if (document.documentElement.lang !== "en") wrong.push("no language");
	if (all("h1").length !== 1 || all("main").length !== 1) wrong.push("not one h1 and one main");
	for (const s of all("section")) if (!document.getElementById(s.getAttribute("aria-labelledby"))?.textContent) wrong.push("a section without a name");
	for (const t of all("table")) if (!t.caption?.textContent) wrong.push("a table without a caption");
	for (const h of all("th")) if (!["row", "col"].includes(h.scope)) wrong.push("a head without a scope: " + h.textContent);
	for (const m of all("meter")) if (!m.getAttribute("aria-label")) wrong.push("a meter without a name");
	for (const b of all("button, a")) if (!b.textContent.trim()) wrong.push("a " + b.tagName + " without a text");
	const ids = all("[id]").map(e => e.id);
	if (new Set(ids).size !== ids.length) wrong.push("an id twice");
	// Text stands out from its ground (WCAG 2.1, 1.4.3: 4.5 to 1).
	const light = ([r, g, b]) => { const [x, y, z] = [r, g, b].map(c => (c /= 255) <= .03928 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4); return .2126 * x + .7152 * y + .0722 * z; };
	const parts = c => c.match(/[\d.]+/g).map(Number);
	for (const e of all("body *")) {
		if (![...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim()) || !e.checkVisibility() || e.closest(".unseen, script, style, meter")) continue;
		let ground = e;
		while (ground && parts(getComputedStyle(ground).backgroundColor)[3] === 0) ground = ground.parentElement;
		const [a, b] = [parts(getComputedStyle(e).color), parts(getComputedStyle(ground ?? document.body).backgroundColor)].map(light).sort((a, b) => b - a);
		if ((a + .05) / (b + .05) < 4.5) wrong.push("hard to read: " + e.outerHTML.slice(0, 80) + " at " + ((a + .05) / (b + .05)).toFixed(1));
	}
	if (document.documentElement.scrollWidth > innerWidth) wrong.push("wider than the screen: " + document.documentElement.scrollWidth + " of " + innerWidth +
		" by " + all("body *").filter(e => !e.closest(".wide") && e.getBoundingClientRect().right > innerWidth + 1).slice(0, 3).map(e => e.outerHTML.slice(0, 60)).join(" | "));
	return wrong.join("\n");
})()`

// Light, dark, wide and narrow, with all that folds open.
func everyScreen(t *testing.T, b *testbrowser.Tab) {
	site := newSite(t, busy())
	grounds := make(map[string]string)
	for _, row := range []struct {
		name       string
		wide, high int64
		scheme     string
	}{
		{"light", 1180, 800, "light"}, {"dark", 1180, 800, "dark"}, {"narrow", 390, 800, "light"}, {"narrow-dark", 320, 640, "dark"},
	} {
		b.Screen(row.wide, row.high, row.scheme)
		site.look(b)
		if *pictures && row.name != "narrow-dark" {
			if err := os.WriteFile(filepath.Join("..", "..", "docs", "page-"+row.name+".png"), small(t, b.Picture()), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		testbrowser.Eval[int](b, `document.querySelectorAll("details").forEach(d => d.open = true), 0`)
		if wrong := testbrowser.Eval[string](b, faults); wrong != "" {
			t.Errorf("%s: %s", row.name, wrong)
		}
		grounds[row.scheme] = testbrowser.Eval[string](b, `getComputedStyle(document.body).backgroundColor`)
	}
	if grounds["light"] == grounds["dark"] {
		t.Errorf("light and dark are both %s", grounds["dark"])
	}
}

// From the address bar on, everything is reached and worked by the keyboard, in the
// order of the page, and shows that it is reached.
func byKeyboard(t *testing.T, b *testbrowser.Tab) {
	b.Screen(1180, 800, "light")
	site := newSite(t, busy())
	site.look(b)
	reached := func() string {
		return testbrowser.Eval[string](b, `(() => {
			const e = document.activeElement;
			if (e === document.body) return "";
			return (getComputedStyle(e).outlineStyle === "none" ? "unseen " : "") + e.tagName.toLowerCase() + " " + e.textContent.trim().replace(/\s+/g, " ").slice(0, 36);
		})()`)
	}
	walk := func() (stops []string) {
		testbrowser.Eval[int](b, `document.querySelector(".skip").focus(), 0`)
		for len(stops) < 20 {
			stop := reached()
			if stop == "" || len(stops) > 0 && stop == stops[0] {
				break
			}
			stops = append(stops, stop)
			b.Press("\t")
		}
		return stops
	}
	want := []string{
		"a Skip to the figures", "button Pause", "summary Reasons that have not come up: 1", "summary The other limits in force", "summary The last hour as a table",
		"a metrics", "a the same as JSON", "a readiness",
	}
	if b.Press("\t"); reached() != want[0] {
		t.Errorf("the first that the tab key reaches is %q", reached())
	}
	if got := walk(); !slices.Equal(got, want) {
		t.Errorf("the tab key reaches %q, want %q", got, want)
	}
	for _, row := range []struct{ at, keys, then string }{
		{"summary:nth-of-type(1)", "\r", `document.querySelector("details").open`},
		{"#h-hour ~ details > summary", " ", `document.querySelector("#h-hour ~ details").open`},
		{"#pause", " ", `document.getElementById("pause").textContent === "Go on"`},
	} {
		testbrowser.Eval[int](b, fmt.Sprintf(`document.querySelector(%q).focus(), 0`, row.at))
		b.Press(row.keys)
		if !testbrowser.Eval[bool](b, row.then) {
			t.Errorf("%q on %s does nothing", row.keys, row.at)
		}
	}
	if got := walk(); len(got) != len(want)+1 || !strings.HasPrefix(got[5], "div The last hour by") { // a table that scrolls
		t.Errorf("with a table open the tab key reaches %q", got)
	}
	// Paused, the page stays as it is; and goes on when asked to.
	site.document.Store(new(example()))
	title := func() string { return testbrowser.Eval[string](b, `document.getElementById("version").textContent`) }
	if got := title(); got != "v1.0.0" {
		t.Errorf("paused, it shows %s", got)
	}
	testbrowser.Eval[int](b, `document.getElementById("pause").focus(), 0`)
	b.Press("\r")
	b.Eventually(func() string {
		if got := title(); got != "v1.2.3" {
			return "it shows " + got
		}
		return ""
	})
	testbrowser.Eval[int](b, `document.querySelector(".skip").focus(), 0`)
	b.Press("\r")
	if got := testbrowser.Eval[string](b, `document.activeElement.id`); got != "figures" {
		t.Errorf("the skip link leads to %q", got)
	}
}

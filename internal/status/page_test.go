package status

import (
	"encoding/json"
	"flag"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// read returns a golden file, which -update writes.
func read(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// example is a document with something in each of its parts.
func example() Status {
	start := time.Date(2030, 2, 3, 4, 0, 0, 0, time.UTC)
	r := NewRecorder(start, 2)
	s := Status{
		Version: "v1.2.3", NotReady: "no upstream takes connections",
		Handshakes: Handshakes{InFlight: 3},
		Rejections: []Rejection{{Reason: "per_ip_cap"}, {Reason: "denied"}, {Reason: "rate_limit"}},
		Ended:      []Total{{"per_ip_cap", 7}}, Observed: []Total{{"per_ip_cap", 0}},
		Listeners:    []Listener{{"public", "[::]:443", "tcp", "terminate", 312, false}, {"old", "[::]:444", "http", "none", 1, true}},
		Upstreams:    []Upstream{{"relay", false, []Address{{"127.0.0.1:7777", false, 0}, {"unix:/run/relay.sock", true, 312}}}},
		Certificates: []Certificate{{[]string{"relay.example.org", "*.example.org"}, "files", new(start.AddDate(0, 1, 0)), 28 * 86400}, {[]string{"chat.example.org"}, "acme", nil, 0}},
		Limits:       []Limit{{"max_connections", 10000, false, new(int64(313))}, {"max_connections_per_ipv6_48", 0, true, new(int64(9))}, {"drain_secs", 30, false, nil}},
		Capped:       Capped{Hosts: 2, Sites: 1, Shown: true, Networks: []Network{{"203.0.113.0/24", 2, 0, 128}}, More: 1},
	}
	for i, f := range []Figures{{}, {Connections: 20, Accepted: 30, Rejections: []uint64{5, 0, 9}}, {Connections: 400, Accepted: 600, BytesIn: 5 << 20, BytesOut: 1 << 30, Rejections: []uint64{7, 0, 9}}} {
		r.record(start.Add(time.Duration(i)*100*time.Second), f)
	}
	r.Fill(&s, start.Add(205*time.Second), Figures{Connections: 313, Accepted: 1600, Handshakes: 12, BytesIn: 6 << 20, BytesOut: 1<<30 + 512, Rejections: []uint64{9, 0, 9}})
	return s
}

func get(t *testing.T, s Status, path string) *httptest.ResponseRecorder {
	t.Helper()
	w := httptest.NewRecorder()
	Pages(func() Status { return s })[path].ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
	if w.Code != http.StatusOK {
		t.Fatalf("%d: %s", w.Code, w.Body)
	}
	return w
}

func TestDocument(t *testing.T) {
	w := get(t, example(), DocumentPath)
	if w.Header().Get("Content-Type") != "application/json" {
		t.Errorf("%v", w.Header())
	}
	var got Status
	if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil || !reflect.DeepEqual(got, example()) {
		t.Errorf("%v: %+v", err, got)
	}
	var pretty map[string]any
	json.Unmarshal(w.Body.Bytes(), &pretty)
	text, err := json.MarshalIndent(pretty, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	// Its names are a contract with whoever reads it.
	if golden := read(t, "status.json", string(text)+"\n"); golden != string(text)+"\n" {
		t.Errorf("%s\nwant\n%s", text, golden)
	}
}

// Every field has its line in the manual.
func TestFieldsAreDocumented(t *testing.T) {
	manual, err := os.ReadFile("../../docs/status.md")
	if err != nil {
		t.Fatal(err)
	}
	var walk func(reflect.Type)
	n := 0
	walk = func(typ reflect.Type) {
		for typ.Kind() == reflect.Slice || typ.Kind() == reflect.Pointer {
			typ = typ.Elem()
		}
		if typ.Kind() != reflect.Struct || typ == reflect.TypeFor[time.Time]() {
			return
		}
		for f := range typ.Fields() {
			if f.Anonymous {
				walk(f.Type)
				continue
			}
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			if n++; name == "" || !strings.Contains(string(manual), "`"+name+"`") {
				t.Errorf("docs/status.md does not say what `%s` of %v is", name, typ)
			}
			walk(f.Type)
		}
	}
	walk(reflect.TypeFor[Status]())
	if n < 50 {
		t.Errorf("only %d fields were looked at", n)
	}
}

// The page says all of it without its script, loads nothing, and allows nothing.
func TestPage(t *testing.T) {
	w := get(t, example(), PagePath)
	body := w.Body.String()
	for _, want := range []string{
		`not ready: no upstream takes connections`, `<dd id="open">313</dd>`, `<span id="accepted-minute">1,570</span>`, `<dd id="in-flight">3</dd>`,
		`<tr><th scope="row">per_ip_cap</th><td class="n">4</td><td class="n">9</td><td class="n">9</td></tr>`, `<p id="quiet">denied</p>`,
		`<td class="n">313</td><td class="n">10,000</td>`, `3 %</meter> 3 %`, `<td class="n">off</td><td class="n"></td>`, `<tr><th scope="row">drain_secs</th><td class="n">30</td></tr>`,
		`203.0.113.0/24`, `and 1 more network`, `<p id="networks-hidden" hidden>`, `unix:/run/relay.sock`, `[::]:444 (removed)`,
		`relay.example.org, *.example.org`, `in 28 d 0 h, 2030-03-03`, `<td class="bad">not to be had yet</td>`,
		`id="line-connections" class="s0" points="3395,1000 3495,952 3595,40"`, `<tr><th scope="row">04:00:00</th><td class="n">400</td><td class="n">600</td><td class="n">7</td>`,
	} {
		if !strings.Contains(body, want) {
			t.Errorf("the page has no %s", want)
		}
	}
	for _, loads := range []string{"http:", "https:", "//", "@import", "url("} {
		for _, part := range regexp.MustCompile(`(?s)(?:src|href)="[^"]*"|<style>.*?</style>`).FindAllString(body, -1) {
			if strings.Contains(part, loads) {
				t.Errorf("the page loads %s", part)
			}
		}
	}
	style := regexp.MustCompile(`(?s)<style>(.*?)</style>`).FindStringSubmatch(body)
	script := regexp.MustCompile(`(?s)<script>(.*?)</script>`).FindStringSubmatch(body)
	want := "default-src 'none'; script-src " + hash(script[1]) + "; style-src " + hash(style[1]) + "; img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
	if got := w.Header().Get("Content-Security-Policy"); got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if w.Header().Get("Referrer-Policy") != "no-referrer" || !strings.HasPrefix(w.Header().Get("Content-Type"), "text/html") {
		t.Errorf("%v", w.Header())
	}
	if strings.Contains(body, "style=") || regexp.MustCompile(`<[a-z]+[^>]* on[a-z]+=`).MatchString(body) {
		t.Error("the policy forbids the page a style or a handler that it has")
	}
}

// What stands in the document is text in the page, whatever it is.
func TestPageEscapes(t *testing.T) {
	const evil = `"><script>alert(1)</script><img src=x onerror=alert(2)>&`
	s := example()
	s.Version, s.NotReady = evil, evil
	s.Listeners[0] = Listener{evil, evil, evil, evil, 1, false}
	s.Upstreams[0] = Upstream{evil, true, []Address{{evil, true, 1}}}
	s.Certificates[0].Names, s.Certificates[0].Source = []string{evil}, evil
	s.Limits[0].Limit, s.Limits[2].Limit = evil, evil
	s.Rejections[0].Reason, s.Rejections[1].Reason = evil, evil
	s.Capped.Networks[0].Network = evil
	body := get(t, s, PagePath).Body.String()
	if strings.Contains(body, "<script>alert") || strings.Contains(body, "<img") || strings.Count(body, "<script>") != 1 {
		t.Error(body)
	}
	if n := strings.Count(body, "&lt;img src=x"); n < 12 {
		t.Errorf("it stands there %d times only", n)
	}
	if text := get(t, s, DocumentPath).Body.String(); strings.Contains(text, "<script>") {
		t.Error(text)
	}
}

// Networks are hidden with a reason.
func TestPageHidesNetworks(t *testing.T) {
	s := example()
	s.Capped = Capped{Hosts: 2, Networks: []Network{}}
	body := get(t, s, PagePath).Body.String()
	for _, want := range []string{`2 hosts and 0 sites have as many`, `<p id="networks-hidden">Their networks are not shown, because log.client_addresses is none;`, `<table id="networks-table" hidden>`, `<p id="more" hidden>`} {
		if !strings.Contains(body, want) {
			t.Errorf("no %s", want)
		}
	}
}

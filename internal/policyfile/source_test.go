package policyfile

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestWhatIsNoPolicyText(t *testing.T) {
	for _, row := range []struct{ name, src, want string }{
		{"tab indent", "limits:\n\tstay_secs: 60\n", "g.yaml:2:1: a tab in the indentation; YAML allows only spaces there"},
		{"tab behind spaces", "limits:\n  \tstay_secs: 60\n", "g.yaml:2:3: a tab in the indentation"},
		{"not UTF-8", "name: caf\xe9\n", "g.yaml:1:10: byte 0xe9 is not UTF-8"},
		{"UTF-16", "\xff\xfen\x00a\x00", "g.yaml:1:1: byte 0xff is not UTF-8"},
		{"escape character", "name: a\x1b[2J\n", "g.yaml:1:8: the character U+001B is not allowed"},
		{"NUL", "name: a\x00\n", "g.yaml:1:8: the character U+0000 is not allowed"},
		{"next line", "name: a\u0085b\n", "g.yaml:1:8: the character U+0085 is not allowed"},
		{"line separator", "name: a\u2028b\n", "g.yaml:1:8: the character U+2028 is not allowed"},
		{"direction override", "# \u202e\n", "g.yaml:1:3: the character U+202E is not allowed"},
		{"byte order mark inside", "name: \uFEFFa\n", "g.yaml:1:7: the character U+FEFF is not allowed"},
		{"CR alone", "name: a\ropen: true\n", "g.yaml:1:8: the character U+000D is not allowed"},
		{"columns are characters", "name: äö\x07\n", "g.yaml:1:9: the character U+0007"},
		{"10 MiB", strings.Repeat("# green\n", 10<<20/8), "g.yaml: larger than 1048576 bytes"},
		{"one byte too many", strings.Repeat("#", maxBytes+1), "g.yaml: larger than 1048576 bytes"},
	} {
		t.Run(row.name, func(t *testing.T) { wantFaults(t, row.src, row.want) })
	}
}

func TestEachBadLineIsNamed(t *testing.T) {
	wantFaults(t, "limits:\n\tstay_secs: 60\n\tbag_bytes: 1\nname: \x01\x02\n",
		"g.yaml:2:1: a tab", "g.yaml:3:1: a tab", "g.yaml:4:7: the character U+0001")
}

func TestWhatIsFine(t *testing.T) {
	for name, src := range map[string]string{
		"empty file":              "",
		"comments only":           "# nothing\n\t# and a tab before it\n\n",
		"byte order mark":         "\uFEFFname: rose\n",
		"CRLF":                    "name: rose\r\nlimits:\r\n  stay_secs: 60\r\n",
		"both":                    "\uFEFFname: rose\r\n",
		"document start":          "---\nname: rose\n",
		"document end":            "name: rose\n...\n",
		"start and nothing":       "---\n",
		"flow style":              "{name: rose, limits: {stay_secs: 60}}",
		"empty sections":          "limits:\nbeds:\nponds:\nname: rose\n",
		"empty sections, braced":  "limits: {}\nbeds: []\nponds: {}\n",
		"tab before a comment":    "name: rose\t# red\n",
		"the largest file":        "name: rose\n" + strings.Repeat("#", maxBytes-11),
		"text over several lines": "name: >-\n  rose\n",
	} {
		t.Run(name, func(t *testing.T) {
			g, faults := read(src)
			if faults != nil {
				t.Fatal(faults)
			}
			if strings.Contains(src, "rose") && g.Name != "rose" {
				t.Errorf("the name is %q", g.Name)
			}
			if strings.Contains(src, "60") && g.Limits.StaySecs != 60 {
				t.Errorf("stay_secs is %d", g.Limits.StaySecs)
			}
		})
	}
}

func TestPartsOfYAMLThatAreRefused(t *testing.T) {
	var bomb strings.Builder
	bomb.WriteString("a: &a [x, x]\n")
	for i := range 8 {
		p, n := string(rune('a'+i)), string(rune('b'+i))
		bomb.WriteString(n + ": &" + n + " [*" + p + ", *" + p + ", *" + p + "]\n")
	}
	start := time.Now()
	if _, got := read(bomb.String()); len(got) != 9+8*3 || !strings.HasPrefix(got[0], "g.yaml:1:4: the anchor &a; anchors are not allowed") {
		t.Errorf("nine levels of aliases: %d faults, %q", len(got), got)
	}
	if d := time.Since(start); d > time.Second {
		t.Errorf("nine levels of aliases took %v", d)
	}
	for _, row := range []struct {
		name, src string
		want      []string
	}{
		{"anchor", "name: &n rose\n", []string{"g.yaml:1:7: the anchor &n; anchors are not allowed"}},
		{"anchor and alias", "name: &n rose\nbeds: *n\n", []string{"g.yaml:1:7: the anchor", "g.yaml:2:7: the alias *n; aliases are not allowed"}},
		{"alias alone", "name: *n\n", []string{"g.yaml:1:7: not valid YAML: an alias without its anchor; aliases are not allowed"}},
		{"merge key", "limits:\n  <<: {stay_secs: 60}\n", []string{"g.yaml:2:3: a merge key (<<)"}},
		{"tag of a type", "name: !!str rose\n", []string{"g.yaml:1:7: the tag !!str; tags are not allowed"}},
		{"tag of our own", "name: !plant rose\n", []string{"g.yaml:1:7: the tag !plant"}},
		{"tag of a section", "limits: !x {}\n", []string{"g.yaml:1:9: the tag !x"}},
		{"bare tag", "name: ! rose\n", []string{"g.yaml:1:7: the tag"}},
		{"binary", "name: !!binary cm9zZQ==\n", []string{"g.yaml:1:7: the tag !!binary"}},
		{"two documents", "name: rose\n---\nname: lily\n", []string{"g.yaml:2:1: a second document"}},
		{"two documents, the first faulty", "nmae: rose\n---\n", []string{"g.yaml:2:1: a second document"}},
		{"directive", "%YAML 1.2\n---\nname: rose\n", []string{"g.yaml:1:1: not valid YAML: found incompatible YAML document; take the line that begins with % out"}},
		{"too deep", "name: " + strings.Repeat("[", 40) + strings.Repeat("]", 40), []string{"g.yaml:1:38: nested deeper than 32 levels"}},
		{"too many", "limits:\n  watch: [" + strings.Repeat("a,", maxNodes) + "]\n", []string{"g.yaml:2:200001: more than 100000 keys and values"}},
	} {
		t.Run(row.name, func(t *testing.T) { wantFaults(t, row.src, row.want...) })
	}
}

func TestSyntaxFaultsHaveAPlace(t *testing.T) {
	for _, row := range []struct{ name, src, want string }{
		{"address without quotes", "open: true\nname: [::]:443\n", `g.yaml:2:7: not valid YAML: did not find expected node content; an address that begins with [ must stand in quotes`},
		{"two colons", "name: a: b\n", "g.yaml:1:8: not valid YAML: mapping values are not allowed in this context"},
		{"deeper than its neighbour", "name: rose\n open: true\n", "g.yaml:2:6: not valid YAML: mapping values are not allowed"},
		{"less deep than its neighbour", "limits:\n    stay_secs: 60\n  bag_bytes: 1\nname: rose\n", "g.yaml:3:3: not valid YAML: did not find expected key; indent the keys of one section alike"},
		{"open quote", "open: true\nname: \"rose\nbeds: []\n", "g.yaml:2:7: not valid YAML: found unexpected end of stream; a quote or bracket that opens here is not closed"},
		{"open bracket", "open: true\nbeds: [{plant: rose}\nname: rose\nponds: {}\n", "g.yaml:2:7: not valid YAML: did not find expected ',' or ']'"},
		{"after a list over lines", "limits:\n  watch: [\n    gate,\n    pond,\n  ]\nname: @rose\n", "g.yaml:6:7: not valid YAML: found character that cannot start any token"},
		{"no colon", "limits:\n  stay_secs 60\n  bag_bytes: 1\n", "g.yaml:3:12: not valid YAML: mapping values are not allowed"},
		{"unknown escape", `name: "\q"`, "g.yaml:1:7: not valid YAML: found unknown escape character"},
		{"after the document's end", "name: rose\n...\nopen: true\n", "g.yaml:3:1: not valid YAML: "},
	} {
		t.Run(row.name, func(t *testing.T) { wantFaults(t, row.src, row.want) })
	}
}

// A fault at the beginning of a large file is found without parsing the file
// once for each line: without the bound these take minutes.
func TestSyntaxFaultsCostABoundedTime(t *testing.T) {
	for name, src := range map[string]string{
		"early":  "name: @x\n" + strings.Repeat("# green\n", 50_000),
		"late":   strings.Repeat("# green\n", 50_000) + "name: @x\n",
		"braces": strings.Repeat("{", 9000),
		"line":   "name: [" + strings.Repeat("x", 200_000),
	} {
		if _, got := read(src); len(got) != 1 || !strings.Contains(got[0], "not valid YAML") {
			t.Errorf("%s: %.200q", name, got)
		}
	}
	// What is open costs its square, and a parse costs something however short it is.
	budget := reparses{times: 3, bytes: 100}
	for i, row := range []struct {
		src  string
		want bool
	}{{strings.Repeat("x", 50), true}, {"{[{[{", true}, {strings.Repeat("x", 21), false}} {
		if got := budget.spend([]byte(row.src)); got != row.want {
			t.Errorf("spending %d: %v", i, got)
		}
	}
	budget = reparses{times: 1, bytes: 100}
	if !budget.spend(nil) || budget.spend(nil) {
		t.Error("the number of parses is not bounded")
	}
}

func TestReadNamesTheFileAsItWasGiven(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	if err := os.WriteFile("g.yaml", []byte("nmae: rose\nponds: {p: {map_file: a/b.png}}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var g garden
	doc, err := Read("g.yaml", &g)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := doc.Err().Error(), "g.yaml:1:1: nmae: unknown key; did you mean name?"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got, want := g.Ponds["p"].MapFile, filepath.Join(dir, "a/b.png"); got != want {
		t.Errorf("a relative path became %q, want %q, which outlives a change of folder", got, want)
	}
	if err := os.WriteFile("big.yaml", []byte(strings.Repeat("#", 3*maxBytes)), 0o600); err != nil {
		t.Fatal(err)
	}
	if doc, err = Read("big.yaml", &g); err != nil || doc.Err() == nil || !strings.HasPrefix(doc.Err().Error(), "big.yaml: larger than") {
		t.Errorf("a file of 3 MiB: %v, %v", doc.Err(), err)
	}
	for path, says := range map[string]string{"none.yaml": "none.yaml: no such file or directory; check the path", dir: "is a directory; name a file in it"} {
		if _, err := Read(path, &g); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", path, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, src := range []string{
		"", "name: rose\nlimits: {stay_secs: 60}\n", "beds:\n  - plant: a\n    rows: 3\n", "ponds: {p: {inflow: [::/0]}}\n",
		"name: \"\\x1b\"\n", "limits:\n\tstay_secs: 1\n", "a: &a [*a]\n", "name: [::]:443\n", "? [a]\n: b\n", "name: |\n  a\n...\n---\n",
	} {
		f.Add([]byte(src))
	}
	f.Fuzz(func(t *testing.T, src []byte) {
		if len(src) > 4096 {
			return
		}
		var g garden
		doc := Parse("g.yaml", src, &g)
		if err := doc.Err(); err != nil {
			if strings.ContainsFunc(strings.ReplaceAll(err.Error(), "\n", ""), unprintable) {
				t.Errorf("a fault that a terminal could obey: %q", err)
			}
			for _, fault := range err.(Faults) {
				if fault.Line < 1 || fault.Column < 1 || fault.Problem == "" {
					t.Errorf("a fault without a place: %#v", fault)
				}
			}
			return
		}
		var again garden
		if err := Parse("g.yaml", Encode(&g), &again).Err(); err != nil {
			t.Errorf("what was written is not read: %v\n%s", err, Encode(&g))
		} else if string(Encode(&g)) != string(Encode(&again)) {
			t.Errorf("written: %s\nread: %s", Encode(&g), Encode(&again))
		}
	})
}

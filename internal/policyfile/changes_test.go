package policyfile

import (
	"slices"
	"strings"
	"testing"
)

// market has every kind of key that can change.
type market struct {
	Name   string              `key:"name" default:"" doc:"what it is called"`
	Open   bool                `key:"open" default:"true" doc:"whether people may enter"`
	Seats  int                 `key:"seats" default:"50" min:"1" doc:"seats in all"`
	Spare  *int                `key:"spare" min:"0" doc:"seats kept"`
	Tags   []string            `key:"tags" default:"[x, y]" doc:"words"`
	Stalls []stall             `key:"stalls" default:"[]" doc:"who sells"`
	Gates  []door              `key:"gates" default:"[]" doc:"ways in"`
	Halls  map[string]stall    `key:"halls" doc:"by name"`
	Signs  map[string]string   `key:"signs" doc:"texts"`
	Lists  map[string][]string `key:"lists" doc:"words by name"`
	Prices Prices              `key:"prices" doc:"what things cost"`
}

type stall struct {
	Name string   `key:"name" default:"" doc:"whose it is"`
	Sell []string `key:"sell" default:"[]" doc:"what"`
	Spot int      `key:"spot" default:"1" min:"1" doc:"where"`
}

type Prices struct {
	Beans int `key:"beans" default:"3" min:"0" doc:"each"`
}

func readMarket(t *testing.T, src string) *market {
	t.Helper()
	m := new(market)
	if err := Parse("m.yaml", []byte(src), m).Err(); err != nil {
		t.Fatal(err)
	}
	return m
}

func TestChanges(t *testing.T) {
	nine := "tags: [a, b, c, d, e, f, g, h, i]"
	for _, row := range []struct {
		name, from, to string
		want           []string
	}{
		{"nothing", "seats: 3", "seats: 3", nil},
		{"a default that is written", "", "seats: 50\nstalls: []\nhalls: {}", nil},
		{"integers", "seats: 3", "seats: 4", []string{"seats: 3 → 4"}},
		{"bools", "", "open: false", []string{"open: true → false"}},
		{"an empty text", "", "name: fair", []string{`name: "" → fair`}},
		{"inside a section", "prices: {beans: 1}", "", []string{"prices.beans: 1 → 3"}},
		{"an optional key", "", "spare: 0", []string{"spare: not written → 0"}},
		{"an optional key goes", "spare: 7", "", []string{"spare: 7 → not written"}},
		{"an optional key changes", "spare: 7", "spare: 8", []string{"spare: 7 → 8"}},
		{"an optional key stays", "spare: 7", "spare: 7", nil},
		{"a short list", "", "tags: [y]", []string{"tags: [x, y] → [y]"}},
		{"the order of a short list", "", "tags: [y, x]", []string{"tags: [x, y] → [y, x]"}},
		{"a long list", nine, "tags: [a, b, c, d, e, f, g, h, j]", []string{"tags: 9 entries → 9 entries (1 added, 1 removed)"}},
		{"a long list grows", nine, nine[:len(nine)-1] + ", j, k]", []string{"tags: 9 entries → 11 entries (2 added)"}},
		{"a long list shrinks", nine, "tags: [a]", []string{"tags: 9 entries → 1 entry (8 removed)"}},
		{"the order of a long list", nine, "tags: [b, a, c, d, e, f, g, h, i]", []string{"tags: 9 entries → 9 entries (in another order)"}},
		{"named sections", "stalls: [{name: a}, {name: b}]", "stalls: [{name: c}, {name: b, spot: 2, sell: [tea]}]",
			[]string{"stalls[a]: removed", "stalls[b].sell: [] → [tea]", "stalls[b].spot: 1 → 2", "stalls[c]: added"}},
		{"the order of named sections", "stalls: [{name: a}, {name: b}]", "stalls: [{name: b}, {name: a}]", nil},
		{"sections of one name", "stalls: [{name: a}, {name: a}]", "stalls: [{name: a, spot: 2}]", []string{"stalls[0].spot: 1 → 2", "stalls[1]: removed"}},
		{"sections without names", "gates: [{wide: 2}]", "gates: [{wide: 3}, {}]", []string{"gates[0].wide: 2 → 3", "gates[1]: added"}},
		{"a map of sections", "halls: {a: {}, c: {}}", "halls: {b: {}, c: {spot: 4}}", []string{"halls.a: removed", "halls.b: added", "halls.c.spot: 1 → 4"}},
		{"a map of texts", "signs: {a: x, b: y}", "signs: {a: z, c: y}", []string{"signs.a: x → z", "signs.b: removed", "signs.c: added"}},
		{"a map of lists", "lists: {a: [x]}", "lists: {a: [y]}", []string{"lists.a: [x] → [y]"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			var got []string
			for _, c := range Changes(readMarket(t, row.from), readMarket(t, row.to)) {
				got = append(got, c.String())
			}
			if !slices.Equal(got, row.want) {
				t.Errorf("%q\nwant %q", got, row.want)
			}
		})
	}
}

// Networks may be clients': their number is told, whatever it is.
func TestChangesTellNoNetwork(t *testing.T) {
	a, b := new(shop), new(shop)
	Defaults(a)
	if err := Parse("p.yaml", []byte("nets: [192.0.2.0/24, 10.0.0.0/8]"), b).Err(); err != nil {
		t.Fatal(err)
	}
	if got := Changes(a, *b); len(got) != 1 || got[0].String() != "nets: 1 entry → 2 entries (1 added)" {
		t.Errorf("%q", got)
	}
}

// A name that a terminal would obey reaches none.
func TestChangeIsPrintable(t *testing.T) {
	if got := (Change{Key: "a\x1b", From: "\x1b[2J", To: "b\n", What: "\a"}).String(); strings.ContainsAny(got, "\x1b\n\a") {
		t.Errorf("%q", got)
	}
}

func TestKeep(t *testing.T) {
	a := readMarket(t, "name: old\nseats: 3\nprices: {beans: 1}\nstalls: [{name: a}]\ntags: [o]")
	b := readMarket(t, "name: new\nseats: 4\nprices: {beans: 2}\nstalls: [{name: b}]\ntags: [n]")
	asked := map[string]bool{}
	Keep(a, b, func(key string) bool {
		asked[key] = true
		return key == "seats" || key == "prices.beans" || key == "stalls"
	})
	if b.Name != "new" || b.Seats != 3 || b.Prices.Beans != 1 || b.Stalls[0].Name != "a" || b.Tags[0] != "n" {
		t.Errorf("%+v", b)
	}
	for _, v := range Values(a) {
		if !asked[v.Key] {
			t.Errorf("%s was not asked about", v.Key)
		}
	}
}

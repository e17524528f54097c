package policyfile

import (
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// shop has a key of every kind whose value is told.
type shop struct {
	Name  string          `key:"name" default:"a b" doc:"its name"`
	Open  bool            `key:"open" default:"true" doc:"whether it is open"`
	Seats int             `key:"seats" default:"50" min:"1" doc:"seats in all"`
	Table int             `key:"table" default:"8" min:"0" max:"seats" doc:"seats of one table"`
	Spare int             `key:"spare" default:"seats/10" min:"0" doc:"seats kept"`
	Staff int             `key:"staff" default:"2" min:"spare" doc:"people"`
	Tags  []string        `key:"tags" default:"[x, y]" doc:"words"`
	Sign  string          `key:"sign" default:"" path:"true" doc:"a picture"`
	Doors []door          `key:"doors" default:"[]" doc:"ways in"`
	Rooms map[string]door `key:"rooms" doc:"by name"`
	Nets  []netip.Prefix  `key:"nets" default:"[10.0.0.0/8]" doc:"networks"`
	From  netip.Addr      `key:"from" default:"::1" doc:"an address"`
	Back  door            `key:"back" doc:"the way out"`
	Bell  string          `key:"bell" default:"/run/bell" path:"socket" doc:"a socket, which is no file to open"`
}

type door struct {
	Key  string   `key:"key" default:"" path:"true" doc:"a file"`
	Also []string `key:"also" default:"[]" path:"true" doc:"more files"`
	Wide int      `key:"wide" default:"1" min:"1" doc:"metres"`
}

func TestValues(t *testing.T) {
	var s shop
	if err := Parse("p.yaml", []byte("tags: [1a, 2a, 3a, 4a, 5a, 6a, 7a, 8a, 9a]\ndoors: [{}, {wide: 2}]"), &s).Err(); err != nil {
		t.Fatal(err)
	}
	want := []Value{{"name", "a b"}, {"open", "true"}, {"seats", "50"}, {"table", "8"}, {"spare", "5"}, {"staff", "5"}, {"tags", "9 entries"},
		{"sign", ""}, {"doors", "2 entries"}, {"rooms", "0 entries"}, {"nets", "1 entry"}, {"from", "::1"}, {"back.key", ""}, {"back.also", "[]"}, {"back.wide", "1"}, {"bell", "/run/bell"}}
	if got := Values(&s); !slices.Equal(got, want) {
		t.Errorf("%v\nwant %v", got, want)
	}
	s.Tags = s.Tags[:maxListed]
	if got := Values(s); !slices.Contains(got, Value{"tags", "[1a, 2a, 3a, 4a, 5a, 6a, 7a, 8a]"}) {
		t.Errorf("a list that may be named: %v", got)
	}
}

func TestFiles(t *testing.T) {
	var s shop
	doc := Parse("/etc/p.yaml", []byte("sign: a.png\ndoors: [{}, {key: /b, also: [c, d]}]\nrooms: {z: {key: e}, y: {key: f}}\nback: {key: g}\nbell: h"), &s)
	if err := doc.Err(); err != nil {
		t.Fatal(err)
	}
	in := func(name string) string { return filepath.Join("/etc", name) }
	if s.Bell != in("h") {
		t.Errorf("a socket's path is read as %s", s.Bell)
	}
	want := []Value{{"sign", in("a.png")}, {"doors[1].key", "/b"}, {"doors[1].also[0]", in("c")}, {"doors[1].also[1]", in("d")},
		{"rooms.y.key", in("f")}, {"rooms.z.key", in("e")}, {"back.key", in("g")}}
	got := Files(&s)
	if !slices.Equal(got, want) {
		t.Errorf("%v\nwant %v", got, want)
	}
	for _, f := range got {
		if origin := doc.Origin(f.Key); !strings.HasPrefix(origin, "/etc/p.yaml:") {
			t.Errorf("%s comes from %s", f.Key, origin)
		}
	}
}

func TestOrigin(t *testing.T) {
	for _, row := range []struct{ src, key, want string }{
		{"", "seats", "default"},
		{"\n\nseats: 9", "seats", "p.yaml:3"},
		{"seats: 9", "table", "default"},
		{"seats: 6", "table", "default, held by seats"},
		{"seats: 6\ntable: 6", "table", "p.yaml:2"},
		{"", "spare", "default, held by seats"},
		{"spare: 2", "staff", "default"},
		{"spare: 3", "staff", "default, held by spare"},
		{"back:\n  wide: 2", "back.wide", "p.yaml:2"},
		{"back:\n  wide: 2", "back.key", "default"},
		{"doors:\n - wide: 2\n - wide: 3", "doors[1].wide", "p.yaml:3"},
	} {
		var s shop
		doc := Parse("p.yaml", []byte(row.src), &s)
		if err := doc.Err(); err != nil {
			t.Fatal(err)
		}
		if got := doc.Origin(row.key); got != row.want {
			t.Errorf("%q: %s comes from %q, want %q", row.src, row.key, got, row.want)
		}
	}
}

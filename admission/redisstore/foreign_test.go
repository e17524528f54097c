package redisstore

import (
	"slices"
	"testing"
	"time"

	"relayedge/admission"
	"relayedge/internal/testredis"
)

// kinds are the ways to make a key one of each kind, without an end.
var kinds = [][]string{
	{"SET", "", "x"}, {"HSET", "", "x", "y"}, {"RPUSH", "", "x"}, {"SADD", "", "x"}, {"ZADD", "", "1", "x"},
}

// set puts a key in a command of kinds.
func set(command []string, key string) []string {
	command = slices.Clone(command)
	command[1] = key
	return command
}

// Whatever stands under a key of the fleet, the next beats count again.
func TestFleetKeysOfAnotherKind(t *testing.T) {
	server := testredis.Start(t)
	store := openTest(t, Config{URL: urlOf(server)}, serverClock)
	one, two := store.Fleet(nil), store.Fleet(nil)
	ask := admission.Ask{Held: 1, Need: 1, Want: 1, Cap: 4}
	number := uint64(0)
	beat := func(of *Fleet) error {
		number++
		_, err := of.send(t.Context(), admission.Beat{Begin: true, Number: number, News: true, Asks: []admission.Ask{ask}})
		return err
	}
	keys := slices.Clone(one.keys)
	for _, of := range []*Fleet{one, two} {
		keys = append(keys, of.keys[0]+":"+of.name(admission.Beat{}))
	}
	for _, key := range keys {
		for _, kind := range kinds {
			must(t, beat(one))
			must(t, beat(two))
			server.Ask("DEL", key)
			server.Ask(set(kind, key)...)
			if err := beat(one); err != nil {
				t.Errorf("%v of %s: %v", kind[0], key, err)
			}
			must(t, beat(two))
		}
	}
	// Nor does what stands for an edge, a version or a number have to be one.
	for _, hash := range append(keys[:3:3], keys[6:]...) {
		for _, name := range []string{"stranger", "#", "@", string(ask.Key[:])} {
			server.Ask("HSET", hash, name, "x")
			must(t, beat(one))
			must(t, beat(two))
		}
	}
	// An edge whose claims are such is given up like any other.
	server.Ask("HSET", one.keys[0], "gone", "1 1 1 1")
	server.Ask("HSET", one.keys[0]+":gone", string(ask.Key[:]), "x")
	must(t, beat(one))
}

// A list of records that is none keeps nobody from storing and from reading.
func TestRecordListOfAnotherKind(t *testing.T) {
	server := testredis.Start(t)
	r := openRecords(t, Config{URL: urlOf(server)}, "certificates")
	for _, kind := range kinds {
		must(t, r.Put(t.Context(), "a", []byte("of a"), time.Hour))
		server.Ask("DEL", r.list)
		server.Ask(set(kind, r.list)...)
		must(t, r.Put(t.Context(), "b", []byte("of b"), time.Hour))
		for _, name := range []string{"a", "b"} {
			if value, err := r.Get(t.Context(), name); err != nil || string(value) != "of "+name {
				t.Errorf("%s, after %s: %q, %v", name, kind[0], value, err)
			}
		}
		must(t, r.Delete(t.Context(), "b"))
	}
}

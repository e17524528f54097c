package proxy

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// ticketShelf is a TicketStore in memory.
type ticketShelf struct {
	mu      sync.Mutex
	value   []byte
	changes int
	put     time.Time
	err     error
	before  func() // called before a swap, once
}

func (s *ticketShelf) Load(context.Context) ([]byte, string, time.Duration, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.changes == 0 || s.err != nil {
		return nil, "", 0, s.err
	}
	return s.value, fmt.Sprint(s.changes), time.Since(s.put), nil
}

func (s *ticketShelf) Swap(_ context.Context, version string, value []byte) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if before := s.before; before != nil {
		s.before = nil
		before()
	}
	if s.err != nil || version != "" && version != fmt.Sprint(s.changes) || version == "" && s.changes > 0 {
		return false, s.err
	}
	s.value, s.put = value, time.Now()
	s.changes++
	return true, nil
}

// changed is how often the value was changed, and when for the last time.
func (s *ticketShelf) changed() (times int, last time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.changes, s.put
}

func (s *ticketShelf) fails(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = err
}

// sharing are two edges that end TLS and share their ticket keys.
func sharing(t *testing.T) (shelf *ticketShelf, a, b *testEdge) {
	shelf = new(ticketShelf)
	edge := func() *testEdge {
		return newEdge(t, func(c *edgeConfig) {
			terminating(c)
			c.tickets = shelf
		})
	}
	return shelf, edge(), edge()
}

// A session of one edge is resumed at another, for as long as at the one that made
// it, and at the moments when the keys change too.
func TestTicketsAreShared(t *testing.T) {
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		t.Run(tls.VersionName(version), func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				shelf, a, b := sharing(t)
				client := func() *tls.Config {
					cfg := clientTLS("relay.example.org")
					cfg.MaxVersion, cfg.ClientSessionCache = version, oneSession{new(*tls.ClientSessionState)}
					return cfg
				}
				time.Sleep(time.Minute) // both have looked
				old, late, often := client(), client(), client()
				for _, cfg := range []*tls.Config{old, late, often} {
					if resumes(a, a.front, cfg) {
						t.Fatal("the first session is resumed")
					}
				}
				for hours := range 35 {
					time.Sleep(time.Hour)
					if !resumes(b, b.front, often) || !resumes(a, a.front, often) {
						t.Errorf("in hour %d a session is not resumed at the other edge", hours+1)
					}
				}
				if !resumes(b, b.front, old) {
					t.Error("a session of 35 hours ago is not resumed")
				}
				time.Sleep(14 * time.Hour)
				if resumes(b, b.front, late) {
					t.Error("a session of 49 hours ago is resumed")
				}
				changes, last := shelf.changed()
				if changes != 5 { // at once, and after each 12 of 49 hours
					t.Errorf("the keys were changed %d times", changes)
				}
				// From before the next change until after it has settled.
				time.Sleep(time.Until(last.Add(ticketRotation - 10*time.Second)))
				for range 50 {
					cfg := client()
					if resumes(a, a.front, cfg) || !resumes(b, b.front, cfg) || !resumes(a, a.front, cfg) {
						t.Fatal("a session is not resumed at the time of a change")
					}
					time.Sleep(4 * time.Second)
				}
				if now, _ := shelf.changed(); now != changes+1 {
					t.Errorf("the keys were changed %d times meanwhile", now-changes)
				}
			})
		})
	}
}

// What an edge makes of what is kept, by its age: one new secret for each rotation
// that is over, and the old ones no longer than their time.
func TestTicketKeysByAge(t *testing.T) {
	kept := []byte(strings.Repeat("a", 32) + strings.Repeat("b", 32) + strings.Repeat("c", 32) + strings.Repeat("d", 32))
	for _, tt := range []struct {
		age  time.Duration
		want string // of each secret one byte, in the order of use; a dot is a new one
	}{
		{0, "bacd"},
		{ticketSettling - time.Nanosecond, "bacd"},
		{ticketSettling, "abcd"},
		{ticketRotation - time.Nanosecond, "abcd"},
		{ticketRotation, "a.bc"},
		{2 * ticketRotation, "a.b"},
		{3 * ticketRotation, "a."},
		{4 * ticketRotation, "."},
		{99 * ticketRotation, "."},
	} {
		synctest.Test(t, func(t *testing.T) {
			shelf := &ticketShelf{value: kept, changes: 1, put: time.Now()}
			time.Sleep(tt.age)
			secrets, _, err := sharedSecrets(t.Context(), shelf)
			var got strings.Builder
			for _, s := range secrets {
				if c := string(s[:1]); strings.Contains("abcd", c) && strings.Trim(string(s[:]), c) == "" {
					got.WriteString(c)
				} else {
					got.WriteString(".")
				}
			}
			if got.String() != tt.want || err != nil {
				t.Errorf("after %v: %s, %v, want %s", tt.age, got.String(), err, tt.want)
			}
			if (shelf.changes == 2) != (tt.age >= ticketRotation) {
				t.Errorf("after %v: changed %d times", tt.age, shelf.changes-1)
			}
			if again, _, err := sharedSecrets(t.Context(), shelf); !slices.Equal(again, secrets) || err != nil {
				t.Errorf("after %v another edge has others: %v", tt.age, err)
			}
		})
	}
}

// Of two edges that make the next secret at once, one does.
func TestTicketKeysAreMadeOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		shelf := new(ticketShelf)
		other := []byte(strings.Repeat("o", 32))
		shelf.before = func() { shelf.value, shelf.changes, shelf.put = other, 1, time.Now() }
		secrets, _, err := sharedSecrets(t.Context(), shelf)
		if len(secrets) != 1 || string(secrets[0][:]) != string(other) || err != nil {
			t.Errorf("%q, %v", secrets, err)
		}
	})
}

func TestTicketKeysThatAreNone(t *testing.T) {
	for _, n := range []int{1, 31, 33, 160} {
		shelf := &ticketShelf{value: make([]byte, n), changes: 1, put: time.Now()}
		if secrets, _, err := sharedSecrets(t.Context(), shelf); err == nil || shelf.changes != 1 {
			t.Errorf("of %d bytes: %d secrets", n, len(secrets))
		}
	}
}

// Without the store an edge goes on with what it has, renews that in its time, and
// takes what the others have when the store is back. One line tells of each.
func TestTicketsWhileTheStoreIsAway(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		shelf, a, b := sharing(t)
		cfg := clientTLS("relay.example.org")
		cfg.ClientSessionCache = oneSession{new(*tls.ClientSessionState)}
		time.Sleep(time.Minute)
		resumes(a, a.front, cfg)
		shelf.fails(errors.New("gone"))
		time.Sleep(11 * time.Hour)
		if !resumes(b, b.front, cfg) {
			t.Error("a session is not resumed while the store is away")
		}
		first := a.server.tickets.of("public")
		time.Sleep(2 * time.Hour)
		if now := a.server.tickets.of("public"); len(now) != 2 || now[1] != first[0] {
			t.Error("the keys are not renewed while the store is away")
		}
		if slices.Equal(a.server.tickets.of("public"), b.server.tickets.of("public")) {
			t.Error("two edges came to the same keys by themselves")
		}
		time.Sleep(13 * time.Hour)
		if n := len(a.server.tickets.of("public")); n != 3 {
			t.Errorf("%d keys after two turns without the store", n)
		}
		shelf.fails(nil)
		time.Sleep(time.Minute)
		if !slices.Equal(a.server.tickets.of("public"), b.server.tickets.of("public")) {
			t.Error("with the store they have different keys")
		}
		for _, e := range []*testEdge{a, b} {
			if text := e.logged(); strings.Count(text, "cannot be had") != 1 || strings.Count(text, "to be had again") != 1 {
				t.Errorf("logged:\n%s", text)
			}
		}
	})
}

// An edge that starts without the store has keys of its own.
func TestTicketsWithoutTheStoreAtTheStart(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		e := newEdge(t, func(c *edgeConfig) {
			terminating(c)
			c.tickets = &ticketShelf{err: errors.New("gone")}
		})
		cfg := clientTLS("relay.example.org")
		cfg.ClientSessionCache = oneSession{new(*tls.ClientSessionState)}
		if resumes(e, e.front, cfg) || !resumes(e, e.front, cfg) {
			t.Error("a session is not resumed")
		}
	})
}

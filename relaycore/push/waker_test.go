package push

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"relayedge/admission"
	"relayedge/relaycore/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// services are push services of a test: they answer after a delay, by host.
type services struct {
	mu     sync.Mutex
	status map[string]int           // by host; 201 by default
	delay  map[string]time.Duration // by host; a second by default
	header http.Header
	urls   []string // as they came
	flying map[string]int
	most   map[string]int // at once, by host and ""
}

func (s *services) RoundTrip(r *http.Request) (*http.Response, error) {
	s.mu.Lock()
	host := r.URL.Host
	s.urls = append(s.urls, r.URL.String())
	for _, of := range []string{host, "", r.URL.String()} {
		s.flying[of]++
		s.most[of] = max(s.most[of], s.flying[of])
	}
	delay, ok := s.delay[host]
	if !ok {
		delay = time.Second
	}
	status, ok := s.status[host]
	if !ok {
		status = 201
	}
	header := s.header.Clone()
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, of := range []string{host, "", r.URL.String()} {
			s.flying[of]--
		}
	}()
	select {
	case <-time.After(delay):
		return &http.Response{StatusCode: status, Header: header, Body: http.NoBody, Request: r}, nil
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
}

func (s *services) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.urls)
}

func (s *services) calls() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.urls)
}

// atOnce is the most calls that were under way at once: to a host, of a URL, or of all.
func (s *services) atOnce(of string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.most[of]
}

var source = netip.MustParsePrefix("192.0.2.1/32")

// wakerFor returns a waker that calls those services, in a bubble.
func wakerFor(t *testing.T, change func(*Config)) (*Waker, *services) {
	t.Helper()
	cfg := DefaultConfig()
	cfg.Enabled, cfg.AllowedHosts = true, []string{"*.example.org"}
	if change != nil {
		change(&cfg)
	}
	if err := cfg.Validate(); err != nil {
		t.Fatal(err)
	}
	s := &services{status: map[string]int{}, delay: map[string]time.Duration{}, flying: map[string]int{}, most: map[string]int{}}
	w := newWaker(cfg, Options{
		Budget: admission.NewFixedWindows(int64(cfg.BudgetPerHour), BudgetWindow), Keys: admission.NewKeyMaker(nil),
	}, s)
	t.Cleanup(w.Close)
	return w, s
}

func who(n int) wire.Identity { return wire.Identity{byte(n >> 8), byte(n), 1} }

// left has an identity leave an endpoint.
func left(t *testing.T, w *Waker, n int, endpoint string) Registration {
	t.Helper()
	r, err := w.Register(who(n), endpoint, time.Now(), source)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// A wake-up is an empty POST to the endpoint of the identity, and to none else.
func TestWake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, s := wakerFor(t, nil)
		left(t, w, 1, "https://push.example.org/one")
		left(t, w, 2, "https://push.example.org/two")
		w.Wake(who(1))
		w.Wake(who(3))
		synctest.Wait()
		if c := w.Stats(); c.InFlight != 1 || c.Waiting != 0 || c.Registrations != 2 {
			t.Errorf("%+v", c)
		}
		time.Sleep(time.Minute)
		if fmt.Sprint(s.calls()) != "[https://push.example.org/one]" {
			t.Error(s.calls())
		}
		if c := w.Stats(); c.InFlight != 0 || c.Outcomes[Woken] != 1 {
			t.Errorf("%+v", c)
		}
	})
}

// Of one registration one wake-up is under way at a time: what comes meanwhile
// is one more after it, however much it is.
func TestWakeCoalesces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, s := wakerFor(t, nil)
		const endpoint = "https://push.example.org/one"
		left(t, w, 1, endpoint)
		for range 100 {
			w.Wake(who(1))
			synctest.Wait()
		}
		if s.count() != 1 {
			t.Errorf("%d calls at once", s.count())
		}
		// Setting the same endpoint anew is no way past that.
		time.Sleep(time.Second / 2)
		left(t, w, 1, endpoint)
		w.Wake(who(1))
		time.Sleep(time.Minute)
		if c := w.Stats(); s.count() != 2 || s.atOnce(endpoint) != 1 || c.Coalesced != 99 || c.Outcomes[Woken] != 2 {
			t.Errorf("%d calls, %d at once: %+v", s.count(), s.atOnce(endpoint), c)
		}
		w.Wake(who(1))
		time.Sleep(time.Minute)
		if s.count() != 3 {
			t.Error("nothing is sent after it")
		}
	})
}

// spec/002: the budget is of a registration and an hour; beyond it wake-ups are
// skipped, and counted. It does not begin anew with another endpoint, nor when
// the identity leaves its endpoint anew.
func TestWakeBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, s := wakerFor(t, func(c *Config) { c.BudgetPerHour = 3 })
		first := left(t, w, 1, "https://push.example.org/one")
		left(t, w, 2, "https://push.example.org/two")
		wake := func(n int) {
			w.Wake(who(n))
			time.Sleep(time.Minute)
		}
		for range 5 {
			wake(1)
		}
		if c := w.Stats(); s.count() != 3 || c.Outcomes[Woken] != 3 || c.Outcomes[Spent] != 2 {
			t.Fatalf("%d calls: %+v", s.count(), c)
		}
		wake(2)
		if s.count() != 4 {
			t.Error("another registration has no budget of its own")
		}
		if err := w.Unregister(who(1), time.Now()); err != nil {
			t.Fatal(err)
		}
		if again := left(t, w, 1, "https://push.example.org/three"); again.ID != first.ID || again.ID == "" {
			t.Errorf("the registration %s is %s", first.ID, again.ID)
		}
		wake(1)
		if s.count() != 4 {
			t.Error("a new endpoint has a new budget")
		}
		time.Sleep(time.Hour - 7*time.Minute - time.Nanosecond)
		wake(1)
		if s.count() != 4 {
			t.Error("the budget came back before the hour was over")
		}
		wake(1)
		if s.count() != 5 {
			t.Error("the budget did not come back")
		}
	})
}

// A few are under way at once, of one host half of them, and a host that does
// not answer holds up its own alone. All get their turn.
func TestWakeQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, s := wakerFor(t, func(c *Config) { c.MaxInFlight = 4 })
		s.delay["slow.example.org"] = time.Hour // cut by timeout_secs
		for n := range 40 {
			host := "slow"
			if n%2 == 1 {
				host = "fast"
			}
			left(t, w, n, fmt.Sprintf("https://%s.example.org/%d", host, n))
		}
		for n := 0; n < 40; n += 2 {
			w.Wake(who(n))
		}
		for n := 1; n < 40; n += 2 {
			w.Wake(who(n))
		}
		synctest.Wait()
		if c := w.Stats(); c.InFlight != 4 || c.Waiting != 36 {
			t.Errorf("%+v", c)
		}
		time.Sleep(10*time.Second + time.Millisecond) // 20 fast ones, two at a time
		fast := 0
		for _, call := range s.calls() {
			if strings.Contains(call, "fast") {
				fast++
			}
		}
		for of, want := range map[string]int{"fast.example.org": 2, "slow.example.org": 2, "": 4} {
			if got := s.atOnce(of); got != want {
				t.Errorf("of %q %d were under way at once", of, got)
			}
		}
		if fast != 20 {
			t.Errorf("%d fast ones", fast)
		}
		time.Sleep(10 * time.Minute)
		if c := w.Stats(); c.Outcomes[Failed] != 20 || c.Outcomes[Woken] != 20 || c.InFlight != 0 || c.Waiting != 0 || len(w.queue.lanes) != 0 || w.queue.turns.Len() != 0 {
			t.Errorf("%+v, %d lanes", c, len(w.queue.lanes))
		}
	})
}

// What the service says of an endpoint.
func TestWakeAnswers(t *testing.T) {
	for _, row := range []struct {
		status int
		header string // Retry-After
		want   Outcome
		kept   bool
		quiet  time.Duration
	}{
		{200, "", Woken, true, 0},
		{299, "", Woken, true, 0},
		{302, "", Refused, true, 0},
		{400, "", Refused, true, 0},
		{404, "", Gone, false, 0},
		{410, "", Gone, false, 0},
		{429, "", Refused, true, time.Minute},
		{429, "300", Refused, true, 5 * time.Minute},
		{429, "x", Refused, true, time.Minute},
		{429, "-5", Refused, true, time.Minute},
		{429, "99999999999999999999", Refused, true, time.Hour},
		{500, "300", Refused, true, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			w, s := wakerFor(t, nil)
			left(t, w, 1, "https://push.example.org/one")
			s.status["push.example.org"], s.header = row.status, http.Header{"Retry-After": {row.header}}
			w.Wake(who(1))
			time.Sleep(time.Second)
			synctest.Wait()
			c := w.Stats()
			if c.Outcomes[row.want] != 1 || (c.Registrations == 1) != row.kept {
				t.Errorf("%d: %+v", row.status, c)
			}
			if !row.kept {
				return
			}
			s.status["push.example.org"] = 201
			if row.quiet > 0 {
				time.Sleep(row.quiet - time.Nanosecond)
				w.Wake(who(1))
				synctest.Wait()
				if c := w.Stats(); s.count() != 1 || c.Outcomes[Quiet] != 1 {
					t.Errorf("%d %q: called while it wants to be left alone: %+v", row.status, row.header, c)
				}
				time.Sleep(time.Nanosecond)
			}
			w.Wake(who(1))
			synctest.Wait()
			if s.count() != 2 {
				t.Errorf("%d %q: not called after it", row.status, row.header)
			}
		})
	}
}

// An endpoint that the service does not know any longer is forgotten only if it
// is still the one that was called.
func TestGoneOfAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, s := wakerFor(t, nil)
		left(t, w, 1, "https://push.example.org/one")
		s.status["push.example.org"] = 410
		w.Wake(who(1))
		synctest.Wait()
		left(t, w, 1, "https://other.example.org/one")
		time.Sleep(time.Minute)
		w.Wake(who(1))
		synctest.Wait()
		if c := w.Stats(); c.Registrations != 1 || s.calls()[s.count()-1] != "https://other.example.org/one" {
			t.Errorf("%+v %v", c, s.calls())
		}
	})
}

// Test reports what came of it, after what is under way, and is told the budget.
func TestTest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, s := wakerFor(t, func(c *Config) { c.BudgetPerHour = 3 })
		left(t, w, 1, "https://push.example.org/one")
		w.Wake(who(1))
		began := time.Now()
		synctest.Wait()
		result, err := w.Test(t.Context(), who(1))
		if err != nil || result.Outcome != Woken || time.Since(began) != 2*time.Second || s.count() != 2 {
			t.Errorf("%+v %v after %v and %d calls", result, err, time.Since(began), s.count())
		}
		if result.Budget.Limit != 3 || result.Budget.Remaining != 1 {
			t.Errorf("%+v", result.Budget)
		}
		s.status["push.example.org"] = 500
		if result, err := w.Test(t.Context(), who(1)); err != nil || result.Outcome != Refused {
			t.Errorf("%+v %v", result, err)
		}
		result, err = w.Test(t.Context(), who(1))
		if err != nil || result.Outcome != Spent || result.Budget.Allowed || result.Budget.Limit != 3 || result.Budget.Remaining != 0 ||
			!result.Budget.Reset.Equal(began.Add(time.Hour)) {
			t.Errorf("%+v %v", result, err)
		}
		if _, err := w.Test(t.Context(), who(2)); err != ErrUnknown {
			t.Error(err)
		}
	})
}

// One test of a registration waits at a time; who goes away leaves the place.
func TestTestWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, s := wakerFor(t, nil)
		s.delay["push.example.org"] = 5 * time.Second
		left(t, w, 1, "https://push.example.org/one")
		w.Wake(who(1))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		done := make(chan error)
		go func() {
			_, err := w.Test(ctx, who(1))
			done <- err
		}()
		synctest.Wait()
		if _, err := w.Test(t.Context(), who(1)); err != ErrBusy {
			t.Error(err)
		}
		if err := <-done; !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		// The endpoint is taken back while a test waits for its turn.
		go func() {
			_, err := w.Test(t.Context(), who(1))
			done <- err
		}()
		synctest.Wait()
		if err := w.Unregister(who(1), time.Now()); err != nil {
			t.Fatal(err)
		}
		if err := <-done; err != ErrUnknown {
			t.Error(err)
		}
		if c := w.Stats(); c.Registrations != 0 || s.count() != 1 {
			t.Errorf("%d calls: %+v", s.count(), c)
		}
	})
}

// A test is the client's own wish: it is made although the service had asked to
// be left alone.
func TestTestOfQuiet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, s := wakerFor(t, nil)
		left(t, w, 1, "https://push.example.org/one")
		s.status["push.example.org"] = 429
		for range 2 {
			if result, err := w.Test(t.Context(), who(1)); err != nil || result.Outcome != Refused {
				t.Errorf("%+v %v", result, err)
			}
		}
	})
}

// What is signed earlier than what has been heeded comes too late; the same
// again has the same answer.
func TestOlderRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, _ := wakerFor(t, nil)
		at := time.Now()
		register := func(endpoint string, at time.Time) error {
			_, err := w.Register(who(1), endpoint, at, source)
			return err
		}
		if err := errors.Join(register("https://a.example.org/", at), register("https://a.example.org/", at), register("https://b.example.org/", at)); err != nil {
			t.Fatal(err)
		}
		if err := register("https://a.example.org/", at.Add(-time.Nanosecond)); err != ErrOlder {
			t.Error(err)
		}
		if err := register("https://b.example.org/", at.Add(time.Second)); err != nil {
			t.Error(err)
		}
		if err := w.Unregister(who(1), at); err != ErrOlder {
			t.Error(err)
		}
		if err := errors.Join(w.Unregister(who(1), at.Add(time.Second)), w.Unregister(who(1), at)); err != nil {
			t.Error(err)
		}
	})
}

func TestRegisterRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, _ := wakerFor(t, nil)
		for endpoint, want := range map[string]error{
			"http://push.example.org/":       errEndpoint,
			"https://push.example.net/":      errHostRefused,
			"https://push.example.org:8443/": errHostRefused,
			"https://127.0.0.1/":             errEndpoint,
		} {
			if _, err := w.Register(who(1), endpoint, time.Now(), source); err != want {
				t.Errorf("%s: %v", endpoint, err)
			}
		}
		if c := w.Stats(); c.Registrations != 0 || c.Bytes != 0 {
			t.Errorf("%+v", c)
		}
		w.Close()
		w.Close()
		if _, err := w.Register(who(1), "https://push.example.org/", time.Now(), source); err != ErrClosed {
			t.Error(err)
		}
		w.Wake(who(1))
		if _, err := w.Test(t.Context(), who(1)); err != ErrClosed {
			t.Error(err)
		}
	})
}

// At the end nothing goes on.
func TestClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, s := wakerFor(t, func(c *Config) { c.MaxInFlight = 1 })
		s.delay["push.example.org"] = time.Hour
		for n := range 3 {
			left(t, w, n, fmt.Sprintf("https://push.example.org/%d", n))
			w.Wake(who(n))
		}
		tested := make(chan error)
		go func() {
			_, err := w.Test(t.Context(), who(2))
			tested <- err
		}()
		synctest.Wait()
		began := time.Now()
		go w.Close()
		if err := <-tested; err == nil {
			t.Error("a test succeeded")
		}
		w.Close()
		if c := w.Stats(); time.Since(began) > time.Second || s.count() != 1 || c.InFlight != 0 || c.Waiting != 0 || c.Registrations != 0 || c.Bytes != 0 {
			t.Errorf("%d calls, after %v: %+v", s.count(), time.Since(began), c)
		}
	})
}

// What waits flies as soon as a reload gives it room.
func TestSetConfigGivesRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, s := wakerFor(t, func(c *Config) { c.MaxInFlight = 1 })
		for n := range 3 {
			left(t, w, n, fmt.Sprintf("https://push%d.example.org/", n))
			w.Wake(who(n))
		}
		cfg := w.cfg
		cfg.MaxInFlight = 3
		w.SetConfig(cfg)
		synctest.Wait()
		if s.count() != 3 {
			t.Errorf("%d calls", s.count())
		}
	})
}

// A reload: hosts that are not allowed any longer are forgotten, a shorter life
// counts from now, and with enabled: false there is nothing.
func TestSetConfig(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, s := wakerFor(t, nil)
		left(t, w, 1, "https://a.example.org/")
		left(t, w, 2, "https://b.example.org/")
		cfg := w.cfg
		cfg.AllowedHosts = []string{"a.example.org"}
		cfg.RegistrationTTLSecs = 3600
		w.SetConfig(cfg)
		w.Wake(who(1))
		w.Wake(who(2))
		time.Sleep(time.Minute)
		if c := w.Stats(); c.Registrations != 1 || fmt.Sprint(s.calls()) != "[https://a.example.org/]" {
			t.Errorf("%+v %v", c, s.calls())
		}
		time.Sleep(59*time.Minute - time.Nanosecond)
		if c := w.Stats(); c.Registrations != 1 {
			t.Errorf("%+v", c)
		}
		time.Sleep(time.Nanosecond)
		if c := w.Stats(); c.Registrations != 0 || c.Bytes != 0 {
			t.Errorf("%+v", c)
		}
		left(t, w, 1, "https://a.example.org/")
		cfg.Enabled = false
		w.SetConfig(cfg)
		if c := w.Stats(); c.Registrations != 0 {
			t.Errorf("%+v", c)
		}
		if _, err := w.Register(who(1), "https://a.example.org/", time.Now(), source); err != ErrDisabled {
			t.Error(err)
		}
		if _, err := w.Test(t.Context(), who(1)); err != ErrDisabled {
			t.Error(err)
		}
	})
}

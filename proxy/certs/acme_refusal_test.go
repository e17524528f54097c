package certs

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"relayedge/internal/testca"
)

// What does not go well: the CA, the storage, the clock, the challenges.

func TestFallbackBetweenChallenges(t *testing.T) {
	t.Parallel()
	s := newSite(t, testca.Options{}, "a.example.org")
	s.tls.Close() // tls-alpn-01 finds nobody
	s.tls = listen(t)
	s.start()
	s.until("a certificate by http-01", func() bool { return s.metric("acme_orders_total", "obtained") == 1 })
	if n := s.ca.Orders(); n != 2 {
		t.Errorf("%d orders, one for each challenge are 2", n)
	}
}

func TestWithoutHTTP01(t *testing.T) {
	t.Parallel()
	s := newSite(t, testca.Options{}, "a.example.org")
	s.cfg.Challenges = []string{challengeHTTP, challengeALPN}
	s.before = func() { s.store.WithoutHTTP01() }
	s.start()
	s.certified("a.example.org")
	if n := s.ca.Orders(); n != 1 {
		t.Errorf("%d orders: the challenge that cannot be answered was tried", n)
	}
	s.end()
	s.cfg.Challenges, s.cfg.Domains = []string{challengeHTTP}, []string{"b.example.org"}
	s.start()
	s.expect("ERROR", "no challenge can be answered")
	if n := s.ca.Orders(); n != 1 {
		t.Errorf("%d orders", n)
	}
}

// http_bind may fail at any time: from there the other challenge is used alone.
func TestHTTP01FailsLater(t *testing.T) {
	t.Parallel()
	s := newSite(t, testca.Options{}, "a.example.org")
	s.cfg.Challenges = []string{challengeHTTP, challengeALPN}
	s.start()
	s.obtained(1)
	if s.store.OrderOpen() {
		t.Error("tls-alpn-01 was asked for first")
	}
	s.store.WithoutHTTP01()
	s.cfg.Domains = append(s.cfg.Domains, "b.example.org")
	release := s.ca.Hold()
	s.reloaded()
	seen := make(chan bool)
	over := make(chan struct{})
	go func() {
		open := false
		for {
			select {
			case <-over:
				seen <- open
				return
			case <-time.After(100 * time.Microsecond):
				open = open || s.store.OrderOpen()
			}
		}
	}()
	release()
	s.obtained(2)
	close(over)
	if !<-seen {
		t.Error("tls-alpn-01 was not asked for")
	}
}

func TestTwentyStartsPlaceOneOrder(t *testing.T) {
	t.Parallel()
	s := newSite(t, testca.Options{}, "a.example.org")
	for range 20 {
		s.start()
		s.certified("a.example.org")
		s.end()
	}
	if n := s.ca.Orders(); n != 1 {
		t.Errorf("%d orders by 20 starts", n)
	}
}

// A process that ends while it orders has failed, and its successors wait.
func TestTwentyStartsThatEndWhileTheyOrder(t *testing.T) {
	t.Parallel()
	s := newSite(t, testca.Options{}, "a.example.org")
	s.cfg.Challenges = []string{challengeALPN}
	hang := make(chan struct{})
	s.hang = hang // its validation gets no answer
	began := time.Now()
	for range 20 {
		s.start()
		if s.ca.Orders() == 0 {
			s.until("an order", func() bool { return s.store.OrderOpen() })
		} else {
			time.Sleep(20 * time.Millisecond) // time to order again, for one that would
		}
		s.stop()
		close(hang)
		s.running.Wait()
		hang = make(chan struct{})
		s.hang = hang
	}
	close(hang)
	most := 1
	if time.Since(began) > 54*time.Second { // the pause of a minute, less a tenth
		most = 2
	}
	if n := s.ca.Orders(); n < 1 || n > most {
		t.Errorf("%d orders by 20 starts in %v", n, time.Since(began))
	}
}

// A new storage may be new at each start: what starts again and again does not
// come to an order.
func TestNewStorageWaitsBeforeTheFirstOrder(t *testing.T) {
	t.Parallel()
	s := newSite(t, testca.Options{}, "a.example.org")
	for range 20 {
		try(t, os.RemoveAll(s.cfg.Storage))
		began := time.Now()
		s.start()
		s.expect("INFO", "the storage is new", "storage="+s.cfg.Storage)
		if wait := s.store.acme.Load().domains[0].due().Sub(began); wait < firstOrderDelay {
			t.Fatalf("the first order waits %s", wait)
		}
		s.end()
	}
	if n := s.ca.Requests(); n != 0 {
		t.Errorf("%d requests", n)
	}
	// With what the last start left, it is not new.
	s.start()
	s.certified("a.example.org")
}

func TestTheCAsRetryTime(t *testing.T) {
	const week = 7 * 24 * time.Hour
	limited := func(words string) string {
		return `{"type":"urn:ietf:params:acme:error:rateLimited","status":429,"detail":"too many certificates` + words + `"}`
	}
	for _, tt := range []struct {
		name    string
		refusal func(at time.Time) testca.Refusal
	}{
		{"in seconds", func(time.Time) testca.Refusal {
			return testca.Refusal{Status: 429, Header: http.Header{"Retry-After": {"604800"}}, Problem: limited("")}
		}},
		{"as a date", func(at time.Time) testca.Refusal {
			return testca.Refusal{Status: 429, Header: http.Header{"Retry-After": {at.Format(http.TimeFormat)}}, Problem: limited("")}
		}},
		{"in its words", func(at time.Time) testca.Refusal {
			return testca.Refusal{Status: 429, Problem: limited(`\nlast week, retry after ` + at.Format("2006-01-02 15:04:05") + ` UTC: see https://ca.example`)}
		}},
		{"of a CA that is down", func(time.Time) testca.Refusal {
			return testca.Refusal{Everything: true, Status: 503, Header: http.Header{"Retry-After": {"604800"}}}
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t, testca.Options{}, "a.example.org")
			began := time.Now()
			refusal := tt.refusal(began.Add(week).UTC())
			s.ca.Refuse(&refusal)
			s.start()
			s.expect("ERROR", "next_attempt=")
			near := func() {
				t.Helper()
				at := time.Unix(int64(s.metric("acme_retry_seconds", "a.example.org")), 0)
				if at.Before(began.Add(week-time.Minute)) || at.After(time.Now().Add(week+time.Minute)) {
					t.Errorf("next attempt at %v, the CA asked at %v for a week", at, began)
				}
			}
			near()
			s.end()
			asked := s.ca.Requests()
			s.ca.Refuse(nil)
			for range 3 {
				s.start()
				near()
				time.Sleep(20 * time.Millisecond) // time to ask, for one that would
				s.end()
			}
			if n := s.ca.Requests(); n != asked {
				t.Errorf("%d requests after the CA asked for a week", n-asked)
			}
		})
	}
}

func TestACAThatIsDown(t *testing.T) {
	t.Parallel()
	s := newSite(t, testca.Options{}, "a.example.org", "b.example.org")
	s.ca.Refuse(&testca.Refusal{Everything: true, Status: 500})
	other := makeCert(t, nil, time.Hour, "file.example.org")
	s.files = []FilePair{placed(t, other)}
	s.start()
	s.expect("ERROR", "the CA cannot be used at the moment", "next_attempt=", "HTTP 500")
	if _, err := handshake(s.tls.Addr().String(), "file.example.org"); err != nil {
		t.Errorf("another name: %v", err)
	}
	if n := s.metric("acme_not_after_seconds", "a.example.org"); n != 0 {
		t.Errorf("not_after %v without a certificate", n)
	}
	s.end() // a name that was about to ask when the other one was refused has asked
	asked := s.ca.Requests()
	s.start()
	time.Sleep(50 * time.Millisecond) // time to ask, for one that would
	s.end()
	if n := s.ca.Requests(); n != asked {
		t.Errorf("%d requests in the pause", n-asked)
	}
	s.ca.Refuse(nil)
	s.passed()
	s.start()
	s.certified("a.example.org", "b.example.org")
	s.expect("INFO", "the CA can be used again")
	if at := s.metric("acme_retry_seconds", "a.example.org"); at != 0 {
		t.Errorf("retry at %v after success", at)
	}
}

func TestANameThatIsRefused(t *testing.T) {
	t.Parallel()
	s := newSite(t, testca.Options{}, "blocked.example", "b.example.org")
	s.start()
	s.certified("b.example.org")
	s.expect("ERROR", "certificate not obtained", "domain=blocked.example", "rejectedIdentifier", "failures=1", "next_attempt=")
	if n := s.metric("acme_orders_total", "failed"); n != 1 {
		t.Errorf("%v failed orders", n)
	}
	if n := s.ca.Orders(); n != 1 {
		t.Errorf("%d orders", n)
	}
	if at := s.metric("acme_retry_seconds", "blocked.example"); at == 0 {
		t.Error("the next attempt is not shown")
	}
}

func TestStorageThatCannotBeWritten(t *testing.T) {
	t.Parallel()
	s := newSite(t, testca.Options{}, "a.example.org")
	file := filepath.Join(t.TempDir(), "file")
	write(t, file, "not a folder")
	s.cfg.Storage = filepath.Join(file, "storage")
	s.start()
	s.expect("ERROR", "nothing is ordered", "storage "+s.cfg.Storage+" cannot be written: not a directory")
	time.Sleep(50 * time.Millisecond) // time to order, for one that would
	if n := s.ca.Requests(); n != 0 {
		t.Errorf("%d requests", n)
	}
	s.end()
	// Told once, and once more when it is well again.
	for _, line := range s.j.take() {
		if strings.Contains(line, "ERROR") {
			t.Errorf("told again: %s", line)
		}
	}
	try(t, os.Remove(file))
	try(t, os.MkdirAll(filepath.Join(s.cfg.Storage, "orders"), 0o700))
	m := s.store.acme.Load()
	m.tellStorage(m.storage.probe(t.Context())) // as before each order
	s.expect("INFO", "the storage can be written again")
	s.start()
	s.certified("a.example.org")
}

func TestAClockThatIsWrong(t *testing.T) {
	const year = 365 * 24 * time.Hour
	for _, tt := range []struct {
		name string
		off  time.Duration
		want string
	}{
		{"a year back", year, "is 8760h0m0s behind the CA's"},
		{"a year ahead", -year, "is 8760h0m0s ahead of the CA's"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t, testca.Options{}, "a.example.org")
			s.ca.SetClock(tt.off)
			s.start()
			s.expect("ERROR", "the clock of this machine", tt.want)
			asked := s.ca.Requests()
			time.Sleep(50 * time.Millisecond) // time to order, for one that would
			if n := s.ca.Requests(); n != asked || s.ca.Orders() != 0 {
				t.Errorf("%d requests more, %d orders", n-asked, s.ca.Orders())
			}
			s.end()
			s.ca.SetClock(time.Hour) // near enough
			s.passed()
			s.start()
			s.certified("a.example.org")
		})
	}
}

func TestExternalAccountBinding(t *testing.T) {
	t.Parallel()
	const key = "zWNDZM6eQGHWpSRTPal5eIUYFTu7EajVIoguysqZ9wG44nMEtx3MUAsUDkMTQ12W"
	s := newSite(t, testca.Options{EABKeyID: "kid-1", EABKey: key}, "a.example.org")
	s.start()
	s.expect("ERROR", "the CA cannot be used", "account: ", "externalAccountRequired")
	s.end()
	s.passed()
	s.cfg.EABKeyID, s.cfg.EABKeyFile = "kid-1", filepath.Join(t.TempDir(), "eab")
	write(t, s.cfg.EABKeyFile, key+"\n")
	s.start()
	s.certified("a.example.org")
	for _, line := range s.j.take() {
		if strings.Contains(line, key) {
			t.Errorf("the key is logged: %s", line)
		}
	}
}

// A torn write is made good by an order, not served.
func TestAStoredCertificateThatCannotBeUsed(t *testing.T) {
	t.Parallel()
	s := newSite(t, testca.Options{}, "a.example.org")
	s.start()
	s.certified("a.example.org")
	s.end()
	keys, err := filepath.Glob(filepath.Join(s.cfg.Storage, "certificates", "*", "a.example.org", "a.example.org.key"))
	if err != nil || len(keys) != 1 {
		t.Fatalf("the key is at %q, %v", keys, err)
	}
	write(t, keys[0], makeCert(t, nil, time.Hour, "a.example.org").key)
	s.start()
	s.expect("WARN", "a stored certificate cannot be used", "domain=a.example.org", "private key does not match")
	s.certified("a.example.org")
	if n := s.ca.Orders(); n != 2 {
		t.Errorf("%d orders", n)
	}
}

// The CA has lost the account, as one that was set up anew.
func TestAnAccountThatIsLost(t *testing.T) {
	t.Parallel()
	s := newSite(t, testca.Options{}, "a.example.org")
	s.start()
	s.certified("a.example.org")
	s.end()
	again := testca.Start(t, testca.Options{TLSPort: port(s.tls), HTTPPort: port(s.http)})
	s.cfg.Domains = []string{"b.example.org"}
	// The same CA by its directory, as the storage sees it.
	folder := func(directory string) string {
		return filepath.Join(s.cfg.Storage, "acme", strings.ReplaceAll(issuerKey(directory), ":", "-"))
	}
	from := folder(s.ca.Directory)
	s.cfg.DirectoryURL, s.cfg.CARootFile = again.Directory, again.RootFile
	try(t, os.Rename(from, folder(again.Directory)))
	account := filepath.Join(folder(again.Directory), "account", "account.json")
	text, err := os.ReadFile(account)
	try(t, err)
	host := func(directory string) string {
		return strings.TrimSuffix(strings.TrimPrefix(directory, "https://"), "/dir")
	}
	write(t, account, strings.ReplaceAll(string(text), host(s.ca.Directory), host(again.Directory)))
	s.ca = again
	s.start()
	s.certified("b.example.org")
}

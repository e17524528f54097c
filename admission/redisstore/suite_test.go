package redisstore

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"relayedge/admission"
	"relayedge/admission/limitstest"
	"relayedge/internal/testredis"
)

// testClock gives scripts a time that stands still until a test moves it, and
// keeps the ends of keys by that time too: where a script sets a key's end, it is
// written into the hash "ends" instead, which advance reads.
const testClock = `local real = redis
local redis = {pcall = real.pcall}
local function clock() return tonumber(real.call('GET', 'clock')) end
local function ends(key, left)
	real.call('HSET', 'ends', key, string.format('%.0f', clock() / 1000 + left))
end
function redis.call(command, key, ...)
	local a = {...}
	if command == 'SET' then
		assert(a[2] == 'PX')
		ends(key, a[3])
		return real.call('SET', key, a[1])
	elseif command == 'PEXPIRE' then
		ends(key, a[1])
		return 1
	elseif command == 'PTTL' then
		local at = real.call('HGET', 'ends', key)
		if at then
			return at - clock() / 1000
		end
		return real.call('EXISTS', key) - 2
	end
	return real.call(command, key, ...)
end
`

// advance moves that clock, and ends the keys whose end has come.
const advance = `local now = redis.call('INCRBY', 'clock', ARGV[1]) / 1000
local ends = redis.call('HGETALL', 'ends')
for i = 1, #ends, 2 do
	if tonumber(ends[i + 1]) <= now then
		redis.call('DEL', ends[i])
		redis.call('HDEL', 'ends', ends[i])
	end
end`

// begun is where the clock begins; the date says nothing.
var begun = time.UnixMicro(1_700_000_000_123_456)

// standing is a server whose clock stands still.
type standing struct {
	*testredis.Server
	stores []*Store
	names  atomic.Int64
	passed time.Duration
}

func newStanding(t *testing.T, n int) *standing {
	t.Helper()
	server := testredis.Start(t)
	server.Ask("SET", "clock", whole(begun.UnixMicro()))
	s := &standing{Server: server}
	for range n {
		s.stores = append(s.stores, openTest(t, Config{URL: URL("redis://" + server.Addr)}, testClock))
	}
	return s
}

func (s *standing) now() time.Time { return begun.Add(s.passed) }

// advance lets time pass, in microseconds rounded up.
func (s *standing) advance(d time.Duration) {
	us := (d + time.Microsecond - 1) / time.Microsecond
	s.passed += us * time.Microsecond
	s.Ask("EVAL", advance, "0", whole(int64(us)))
}

// left counts the keys that are not the test's own.
func (s *standing) left() (n int) {
	for _, key := range s.Keys() {
		if key != "clock" && key != "ends" {
			n++
		}
	}
	return n
}

// fresh makes sure that nothing is counted yet, and returns a name for windows.
func (s *standing) fresh() string {
	for _, key := range s.Keys() {
		if key != "clock" {
			s.Ask("DEL", key)
		}
	}
	return fmt.Sprintf("test%d", s.names.Add(1))
}

func (s *standing) suite() limitstest.Store {
	return limitstest.Store{
		Windows: func(t testing.TB, n int, limit int64, window time.Duration) (all []admission.Windows) {
			name := s.fresh()
			for i := range n {
				all = append(all, s.stores[i].Windows(RequestLimits, name, limit, window, refuseAll{}))
			}
			return all
		},
		Messages: func(t testing.TB, n int, c admission.MessageLimitsConfig, l admission.MessageLengths) (all []admission.Messages) {
			s.fresh()
			for i := range n {
				all = append(all, s.stores[i].Messages(c, l, refuseAll{}))
			}
			return all
		},
		Now: s.now, Advance: s.advance,
		Slack:     2 * time.Millisecond,
		Instances: len(s.stores),
		Samples:   20,
		Left:      func(testing.TB) int { return s.left() },
	}
}

// The contracts, held by the scripts whose time the suite moves.
func TestWindowsContract(t *testing.T)  { limitstest.TestWindows(t, newStanding(t, 2).suite()) }
func TestMessagesContract(t *testing.T) { limitstest.TestMessages(t, newStanding(t, 2).suite()) }

// refuseAll are local limits of which nothing is allowed, so that it is seen what
// they decide.
type refuseAll struct{}

func (refuseAll) SetLimit(int64, time.Duration)                     {}
func (refuseAll) SetLimits(admission.MessageLimitsConfig) (_ error) { return nil }

func (refuseAll) Take(context.Context, admission.Key, time.Time) (d admission.Decision) { return d }
func (refuseAll) Peek(context.Context, admission.Key, time.Time) (d admission.Decision) { return d }
func (refuseAll) Read(context.Context, admission.Key, time.Time) (d admission.Decision) { return d }

// openTest opens a store that waits long enough for a slow machine, until the test's end.
func openTest(t testing.TB, cfg Config, clock string) *Store {
	t.Helper()
	s, err := open(withDefaults(t, cfg), quiet(t), tuning{clock: clock, budget: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	// A slow machine can be late with connecting.
	await(t, "the store is reached", func() bool { return !s.Away() })
	return s
}

// withDefaults fills in what the policy file would.
func withDefaults(t testing.TB, cfg Config) Config {
	t.Helper()
	if cfg.Prefix == "" {
		cfg.Prefix = "relayedge"
	}
	if cfg.SecretFile == "" {
		cfg.SecretFile = writeFile(t, "secret", strings.Repeat("0123456789abcdef", 4)+"\n", 0o600)
	}
	if err := cfg.Validate(); err != nil {
		t.Fatal(err)
	}
	return cfg
}

func writeFile(t testing.TB, name, text string, mode os.FileMode) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(file, mode); err != nil {
		t.Fatal(err)
	}
	return file
}

func quiet(t testing.TB) *slog.Logger { return slog.New(slog.NewTextHandler(t.Output(), nil)) }

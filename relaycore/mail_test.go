package relaycore

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"relayedge/relaycore/mailbox"
	"relayedge/relaycore/wire"
)

// absent is a blinded conversation of p with the identity number n, who has left.
func (w *world) absent(p *peer, n, token int) (circuit uint64) {
	w.t.Helper()
	b := w.as(client(400), n)
	circuit = w.blindPair(p, b, token)
	b.nc.Close()
	synctest.Wait()
	return circuit
}

// posts sends a message and returns the limit that it was refused for, 0 if it
// was accepted.
func (p *peer) posts(circuit uint64, n, size int) wire.Limit {
	p.w.t.Helper()
	p.send(wire.Send{Circuit: circuit, ID: messageID(n), Payload: make([]byte, size)})
	return p.posted(n)
}

func (p *peer) posted(n int) wire.Limit {
	p.w.t.Helper()
	switch f := want[wire.Frame](p).(type) {
	case wire.MessageAck:
		if f.ID == messageID(n) {
			return 0
		}
	case wire.RateLimited:
		if f.Frame == wire.TypeSend && f.MessageID == messageID(n) && f.RetryAfterSecs >= 1 && f.RetryAfterSecs <= 60 {
			return f.Limit
		}
	}
	p.w.t.Fatalf("message %d got another answer", n)
	return 0
}

// gets checks that exactly these messages of a sender have come from the mailbox.
func (p *peer) gets(sender wire.Identity, from, to int) {
	p.w.t.Helper()
	for i := from; i < to; i++ {
		if got := want[wire.Message](p); !got.Stored || got.Circuit != 0 || got.Sender != sender || got.ID != messageID(i) {
			p.w.t.Fatalf("message %x, stored %v, came in place of %d", got.ID[:8], got.Stored, i)
		}
	}
	p.quiet()
}

func (p *peer) acks(from, to int) {
	p.w.t.Helper()
	var ids []wire.MessageID
	for i := from; i < to; i++ {
		ids = append(ids, messageID(i))
	}
	p.send(wire.Ack{IDs: ids})
}

func (w *world) mailStats() mailbox.Stats {
	synctest.Wait()
	return w.s.mail.store.Stats(time.Now())
}

// What waits comes behind PUBLISHED in order, a window at a time, and later
// messages of the same sender come behind it. What is not acknowledged comes again.
func TestMailbox(t *testing.T) {
	bubble(t, fronted, func(t *testing.T, w *world) {
		a := w.as(client(0), 1)
		circuit := w.absent(a, 2, 7)
		for i := range 100 {
			if limit := a.posts(circuit, i, 100); limit != 0 {
				t.Fatalf("message %d is refused: %v", i, limit)
			}
		}
		b := w.as(client(1), 2)
		want[wire.CircuitClosed](a)
		b.gets(idOf(1), 0, 64)
		// A new circuit, while older messages wait: the mailbox is not overtaken.
		circuit = w.blindPair(a, b, 8)
		if a.posts(circuit, 100, 100) != 0 {
			t.Fatal("refused")
		}
		b.quiet()
		b.acks(0, 40)
		b.gets(idOf(1), 64, 101) // 24 of the first ones are in flight still
		// All was handed out, so the circuit is the way again.
		if a.posts(circuit, 101, 100) != 0 {
			t.Fatal("refused")
		}
		if got := want[wire.Message](b); got.Stored || got.Circuit != circuit || got.ID != messageID(101) {
			t.Fatalf("%+v", got)
		}
		b.acks(50, 90)
		if st := w.mailStats(); st.Messages != 10+11 || st.InFlight != 10+11 {
			t.Fatalf("%+v", st)
		}
		b.nc.Close()
		if st := w.mailStats(); st.Messages != 21 || st.InFlight != 0 {
			t.Fatalf("%+v", st)
		}
		b = w.as(client(2), 2)
		for i := range 10 {
			if got := want[wire.Message](b); got.ID != messageID(40+i) {
				t.Fatalf("%x came", got.ID[:8])
			}
		}
		b.gets(idOf(1), 90, 101)
		// Another connection of the same identity: it has what the older one did not acknowledge.
		b.acks(40, 50)
		c := w.as(client(3), 2)
		c.gets(idOf(1), 90, 101)
		c.acks(90, 101)
		if st := w.mailStats(); st.Messages != 0 || st.Bytes != 0 || st.InFlight != 0 || st.Acked != 101 {
			t.Fatalf("%+v", st)
		}
		w.wantOnly("", 0)
	})
}

// A recipient that is there gets at once what is put for it; ids of others, and
// of messages that came on a circuit, are no acknowledgement.
func TestMailboxWakesItsRecipient(t *testing.T) {
	bubble(t, fronted, func(t *testing.T, w *world) {
		a, b := w.as(client(0), 1), w.as(client(1), 2)
		circuit := w.blindPair(a, b, 7)
		b.send(wire.Close{Circuit: circuit}) // a may go on: b has a mailbox
		synctest.Wait()
		start := time.Now()
		if a.posts(circuit, 1, 10) != 0 {
			t.Fatal("refused")
		}
		b.gets(idOf(1), 1, 2)
		if passed := time.Since(start); passed != 0 {
			t.Errorf("it came after %v", passed)
		}
		a.acks(1, 2)
		b.acks(2, 3)
		if st := w.mailStats(); st.Messages != 1 {
			t.Fatalf("%+v", st)
		}
		b.acks(1, 2)
		if st := w.mailStats(); st.Messages != 0 {
			t.Fatalf("%+v", st)
		}
	})
}

// A backlog never makes its reader a slow consumer, nor does it keep others'
// messages from it, however slowly it reads and whatever is sent to it meanwhile.
func TestBacklogEndsNobody(t *testing.T) {
	bubble(t, fronted, func(t *testing.T, w *world) {
		a, c := w.as(client(0), 1), w.as(client(1), 3)
		circuit := w.absent(a, 2, 7)
		for i := range 500 {
			if a.posts(circuit, i, 16<<10) != 0 {
				t.Fatalf("message %d is refused", i)
			}
		}
		b := w.as(client(2), 2)
		b.gets(idOf(1), 0, 64)
		direct := w.blindPair(c, b, 8)
		stored, others := 64, 0
		for stored < 500 {
			b.stopReading()
			b.acks(stored-64, stored)
			for i := range 30 {
				if c.posts(direct, 1000*stored+i, 1226) != 0 {
					t.Fatal("refused")
				}
			}
			time.Sleep(29 * time.Second)
			b.resume()
			synctest.Wait()
			for range len(b.frames) {
				select {
				case r := <-b.frames:
					f, _ := wire.DecodeServer(r.payload)
					if m, ok := f.(wire.Message); ok && m.Stored {
						if m.ID != messageID(stored) {
							t.Fatalf("%x came in place of %d", m.ID[:8], stored)
						}
						stored++
					} else if ok {
						others++
					}
				default:
				}
			}
			a.send(wire.Keepalive{})
			c.send(wire.Keepalive{})
		}
		if others < 30 {
			t.Fatalf("%d messages of another came beside %d", others, stored)
		}
		w.wantOnly("", 0)
	})
}

// A flood of messages does not keep what waits from its recipient.
func TestBacklogTakesTurns(t *testing.T) {
	bubble(t, fronted, func(t *testing.T, w *world) {
		a, b := w.as(client(0), 1), w.as(client(1), 2)
		_, n := w.stuffed(a, b, 1226)
		held := mailbox.Message{Recipient: idOf(2), Sender: idOf(3), ID: messageID(9999), Payload: make([]byte, 1226), Contact: true}
		if err := w.s.mail.put(held, time.Now()); err != nil {
			t.Fatal(err)
		}
		w.s.dir.wake(idOf(2))
		b.resume()
		for i := range n + 1 {
			if got := want[wire.Message](b); got.Stored {
				if i > n/2 {
					t.Errorf("what waited is number %d of %d", i, n)
				}
				return
			}
		}
		t.Error("what waited did not come")
	})
}

// What is in a writer's hands is charged, and given back.
func TestBacklogIsCharged(t *testing.T) {
	bubble(t, fronted, func(t *testing.T, w *world) {
		a := w.as(client(0), 1)
		circuit := w.absent(a, 2, 7)
		if a.posts(circuit, 1, 1<<20) != 0 {
			t.Fatal("refused")
		}
		b := w.behind(client(1))
		b.stopReading()
		b.send(wire.NewPublish(keyOf(2), nil, b.nonce, [32]byte{}))
		synctest.Wait()
		if n, _ := w.s.dir.members[idOf(2)].out.account.balance(); n < 2<<20 {
			t.Errorf("%d bytes are charged for a message of 1 MiB on its way", n)
		}
		b.resume()
		want[wire.Published](b)
		b.gets(idOf(1), 1, 2)
		if n, _ := w.s.dir.members[idOf(2)].out.account.balance(); n != 0 {
			t.Errorf("%d bytes are charged for nothing", n)
		}
	})
}

// slowDisk is a store that takes its time, and takes nothing while fault is set.
type slowDisk struct {
	mailbox.Store
	wait  time.Duration
	fault error
}

func (s *slowDisk) Put(m mailbox.Message, now time.Time) error {
	time.Sleep(s.wait)
	if s.fault != nil {
		return &mailbox.Refusal{Limit: mailbox.LimitStorage, RetryAfter: time.Minute, Err: s.fault}
	}
	return s.Store.Put(m, now)
}

// A disk that is slow keeps nobody waiting but who writes to it, whose connection
// stays; one that takes nothing is said once, and so is that it does again.
func TestSlowAndFaultyDisk(t *testing.T) {
	disk := &slowDisk{wait: 100 * time.Second}
	bubble(t, func(c *Config) { fronted(c); c.Limits.ConnectionTimeoutSecs = 60 }, func(t *testing.T, w *world) {
		disk.Store, w.s.mail.store = w.s.mail.store, disk
		a, c, d := w.as(client(0), 1), w.as(client(1), 3), w.as(client(2), 4)
		circuit := w.absent(a, 2, 7)
		a.pongs.Store(false) // they come only once it is read
		start := time.Now()
		a.send(wire.Send{Circuit: circuit, ID: messageID(1)})
		synctest.Wait()
		// All the others go on, with directory and mailbox.
		direct := w.blindPair(c, d, 8)
		if c.posts(direct, 2, 10) != 0 || want[wire.Message](d).ID != messageID(2) || time.Since(start) != 0 {
			t.Fatalf("others have waited %v for the disk", time.Since(start))
		}
		d.acks(2, 3)
		if a.posted(1) != 0 || time.Since(start) != disk.wait {
			t.Fatalf("accepted after %v", time.Since(start))
		}
		time.Sleep(50 * time.Second)
		a.quiet()
		a.pongs.Store(true)
		disk.wait, disk.fault = 0, errors.New("no space left on device")
		for i := range 3 {
			if got := a.posts(circuit, 10+i, 10); got != wire.LimitMailboxStorage {
				t.Fatalf("refused for %v", got)
			}
		}
		if n := strings.Count(w.log.String(), "no space left on device"); n != 1 {
			t.Errorf("it is said %d times:\n%s", n, w.log)
		}
		w.wantNothingBut(ReasonQueueOverflow, ReasonIdleTimeout) // c and d have said nothing for long
		disk.fault = nil
		for i := range 2 {
			if got := a.posts(circuit, 20+i, 10); got != 0 {
				t.Fatalf("refused for %v", got)
			}
		}
		if n := strings.Count(w.log.String(), "takes messages again"); n != 1 {
			t.Errorf("that it is well again is said %d times:\n%s", n, w.log)
		}
		b := w.as(client(3), 2)
		if want[wire.Message](b).ID != messageID(1) {
			t.Error("another message came first")
		}
		b.gets(idOf(1), 20, 22)
	})
}

// withFile keeps the mailbox in a file of the folder.
func withFile(t testing.TB, dir string) func(*Config) {
	key := filepath.Join(dir, "key")
	if err := os.WriteFile(key, []byte(strings.Repeat("5a", 32)), 0o600); err != nil {
		t.Fatal(err)
	}
	return func(c *Config) {
		fronted(c)
		c.OfflineQueue.File, c.OfflineQueue.KeyFile = filepath.Join(dir, "mailbox"), key
	}
}

// What waits in a file comes after a restart, and from a copy that was made while
// the relay ran.
func TestMailboxFile(t *testing.T) {
	dir, other := t.TempDir(), t.TempDir()
	change := withFile(t, dir)
	bubble(t, change, func(t *testing.T, w *world) {
		a := w.as(client(0), 1)
		circuit := w.absent(a, 2, 7)
		for i := range 5 {
			if a.posts(circuit, i, 5000) != 0 {
				t.Fatalf("message %d is refused", i)
			}
		}
		var copied bytes.Buffer
		if err := w.s.BackupMailbox(&copied); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(other, "mailbox"), copied.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
		b := w.as(client(1), 2)
		b.gets(idOf(1), 0, 5)
		b.acks(0, 3)
		synctest.Wait()
	})
	bubble(t, change, func(t *testing.T, w *world) {
		w.as(client(1), 2).gets(idOf(1), 3, 5)
		if !strings.Contains(w.log.String(), "mailbox file opened") || !strings.Contains(w.log.String(), "messages=2") {
			t.Errorf("the log says\n%s", w.log)
		}
	})
	bubble(t, withFile(t, other), func(t *testing.T, w *world) {
		w.as(client(1), 2).gets(idOf(1), 0, 5)
	})
}

func TestBackupOfMemory(t *testing.T) {
	s, err := NewServer(DefaultConfig(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := s.BackupMailbox(new(bytes.Buffer)); err == nil || !strings.Contains(err.Error(), "offline_queue.file") {
		t.Errorf("%v", err)
	}
}

// What is wrong with the file or its key is said at the start, and nothing is left open.
func TestMailboxFileRefused(t *testing.T) {
	for _, tc := range []struct {
		name, says string
		spoil      func(t *testing.T, c *Config)
	}{
		{"no key file", "relay.offline_queue.key_file: ", func(t *testing.T, c *Config) { os.Remove(c.OfflineQueue.KeyFile) }},
		{"a key that others can read", "chmod 600", func(t *testing.T, c *Config) { os.Chmod(c.OfflineQueue.KeyFile, 0o644) }},
		{"another key", "the key is not the one", func(t *testing.T, c *Config) {
			os.WriteFile(c.OfflineQueue.KeyFile, []byte(strings.Repeat("a5", 32)), 0o600)
		}},
		{"no folder", "relay.offline_queue.file: ", func(t *testing.T, c *Config) { c.OfflineQueue.File += "/none/mailbox" }},
		{"something else", "relay.offline_queue.file: ", func(t *testing.T, c *Config) {
			os.WriteFile(c.OfflineQueue.File, bytes.Repeat([]byte("text\n"), 10_000), 0o600)
		}},
		{"damage", "relay.offline_queue.file: ", func(t *testing.T, c *Config) { os.Truncate(c.OfflineQueue.File, 5000) }},
		{"another process", "another process has it open", func(t *testing.T, c *Config) {
			s, err := NewServer(*c, slog.New(slog.DiscardHandler))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(s.Close)
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cfg := DefaultConfig()
			withFile(t, t.TempDir())(&cfg)
			s, err := NewServer(cfg, slog.New(slog.DiscardHandler))
			if err != nil {
				t.Fatal(err)
			}
			s.Close()
			s.Close()
			tc.spoil(t, &cfg)
			s, err = NewServer(cfg, slog.New(slog.DiscardHandler))
			if err == nil {
				s.Close()
				t.Fatal("a relay was made")
			}
			if !strings.Contains(err.Error(), tc.says) {
				t.Errorf("%v", err)
			}
		})
	}
}

// A lower ttl binds what waits, a lower cap what comes.
func TestMailboxLimitsChange(t *testing.T) {
	bubble(t, fronted, func(t *testing.T, w *world) {
		a := w.as(client(0), 1)
		circuit := w.absent(a, 2, 7)
		if a.posts(circuit, 1, 10) != 0 {
			t.Fatal("refused")
		}
		a.nc.Close()
		time.Sleep(2*time.Hour - time.Nanosecond)
		l := mailLimits(w.s.start, true)
		l.TTL = 2 * time.Hour
		w.s.mail.setLimits(l)
		if st := w.mailStats(); st.Messages != 1 {
			t.Fatalf("%+v", st)
		}
		// The timer is set anew; a shorter wait than a second is not waited for alone.
		time.Sleep(leastWait)
		synctest.Wait()
		if st := w.s.mail.store.Expire(time.Time{}); !st.IsZero() {
			t.Fatalf("something is due at %v", st)
		}
		l.RecipientBytes = 700
		w.s.mail.setLimits(l)
		a = w.as(client(0), 1)
		if got := a.posts(w.absent(a, 2, 8), 2, 10); got != wire.LimitMailboxBytes {
			t.Fatalf("refused for %v", got)
		}
	})
}

// Every limit of the mailbox has a name on the wire, a name of its own.
func TestMailLimits(t *testing.T) {
	names := map[wire.Limit]bool{}
	for limit, name := range mailLimit {
		if names[name] || strings.HasPrefix(fmt.Sprint(limit), "limit ") || strings.HasPrefix(fmt.Sprint(name), "limit ") {
			t.Errorf("%v is %v", limit, name)
		}
		names[name] = true
	}
	if len(mailLimit) != len(mailbox.Stats{}.Refused) {
		t.Errorf("%d of %d limits have a name", len(mailLimit), len(mailbox.Stats{}.Refused))
	}
}

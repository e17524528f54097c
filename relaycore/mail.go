package relaycore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"relayedge/relaycore/mailbox"
	"relayedge/relaycore/wire"
)

// mail is the relay's mailbox, with the alarm and the log lines that it needs.
type mail struct {
	// Static once it is opened.
	store  mailbox.Store
	file   *mailbox.File // the store, where it is one
	opened atomic.Bool

	// Static.
	path string // of the file; empty: it is in memory
	key  mailbox.Key
	log  *slog.Logger

	stuck atomic.Bool // it was said that the file takes nothing

	// Guarded by mu, under which the store's lock alone is taken.
	mu     sync.Mutex
	limits mailbox.Limits
	life   time.Duration // of a message
	alarm  alarm         // of sweep
}

// newMail returns the mailbox that cfg asks for, which is still to be opened.
func newMail(cfg Config, sources bool, log *slog.Logger) (*mail, error) {
	limits := mailLimits(cfg, sources)
	m := &mail{log: log, path: cfg.OfflineQueue.File, limits: limits, life: limits.TTL}
	m.alarm.ring = m.sweep
	if m.path == "" {
		return m, nil
	}
	var err error
	if m.key, err = mailbox.ReadKey(cfg.OfflineQueue.KeyFile); err != nil {
		return nil, fmt.Errorf("relay.offline_queue.key_file: %w", err)
	}
	return m, nil
}

// open opens it, by the limits in force.
func (m *mail) open(now time.Time) error {
	m.mu.Lock()
	limits := m.limits
	m.mu.Unlock()
	if m.path == "" {
		m.store = mailbox.NewMemory(limits, now)
		m.opened.Store(true)
		return nil
	}
	f, err := mailbox.OpenFile(m.path, m.key, limits, now)
	if err != nil {
		return fmt.Errorf("relay.offline_queue.file: %w", err)
	}
	m.store, m.file = f, f
	m.opened.Store(true)
	o := f.Opened()
	m.log.Info("mailbox file opened", "file", m.path, "messages", o.Messages, "expired", o.Expired, "bytes", o.Bytes, "freed_bytes", o.Freed)
	if o.CompactErr != nil {
		m.log.Warn("the mailbox file stays longer than what it holds", "file", m.path, "error", o.CompactErr)
	}
	m.mu.Lock()
	limits = m.limits
	m.mu.Unlock()
	m.store.SetLimits(limits) // which a reload may have changed meanwhile
	m.sweep()
	return nil
}

// await opens it, when the process that has it open has closed it. It gives up when
// ctx ends.
func (m *mail) await(ctx context.Context) error {
	for told := false; ; told = true {
		err := m.open(time.Now())
		if !errors.Is(err, mailbox.ErrOpenElsewhere) {
			return err
		}
		if !told {
			m.log.Info("the mailbox file is still open in the process before; clients wait until it is closed there", "file", m.path)
		}
		select {
		case <-time.After(mailPause):
		case <-ctx.Done():
			return nil
		}
	}
}

// mailPause is the time between two looks whether another process has the file open.
const mailPause = 50 * time.Millisecond

// mailLimits are the mailbox's limits. All of them can be set while it is open.
func mailLimits(cfg Config, sources bool) mailbox.Limits {
	return mailbox.Limits{
		TotalBytes:     int64(cfg.Limits.OfflineQueueMaxTotalBytes),
		RecipientBytes: int64(cfg.Limits.OfflineQueueMaxBytesPerRecipient),
		TTL:            cfg.OfflineQueue.TTL(),
		Sources:        sources,
	}
}

// setLimits binds what is put from here on, and what waits to the ttl.
func (m *mail) setLimits(l mailbox.Limits) {
	m.mu.Lock()
	m.life, m.limits = l.TTL, l
	m.mu.Unlock()
	if !m.opened.Load() {
		return
	}
	m.store.SetLimits(l)
	m.sweep()
}

// put holds a message. It waits for the disk, if the mailbox is a file.
func (m *mail) put(message mailbox.Message, now time.Time) error {
	err := m.store.Put(message, now)
	if r, ok := errors.AsType[*mailbox.Refusal](err); ok && r.Limit == mailbox.LimitStorage {
		if m.stuck.CompareAndSwap(false, true) {
			m.log.Error("the mailbox file takes nothing; senders keep their messages and are told to come again", "error", r.Err)
		}
	}
	if err != nil {
		return err
	}
	if m.stuck.CompareAndSwap(true, false) {
		m.log.Info("the mailbox file takes messages again")
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.alarm.by(now.Add(m.life), now)
	return nil
}

// next is what a reader has to be written next.
func (m *mail) next(r *mailbox.Reader, now time.Time) []mailbox.Held {
	portion, err := r.Next(now)
	if err != nil {
		m.log.Error("messages in the mailbox cannot be read", "error", err)
	}
	return portion
}

// stats is what the mailbox holds.
func (m *mail) stats(now time.Time) mailbox.Stats {
	if !m.opened.Load() {
		return mailbox.Stats{}
	}
	return m.store.Stats(now)
}

// faults is how often writing to the file has failed.
func (m *mail) faults() uint64 {
	if !m.opened.Load() || m.file == nil {
		return 0
	}
	failed, _ := m.file.Fault()
	return failed
}

// leastWait keeps the alarm from ringing on and on, whatever the store says.
const leastWait = time.Second

// sweep forgets what has lived its time where nobody comes by to do so.
func (m *mail) sweep() {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	m.alarm.rung()
	if due := m.store.Expire(now); !due.IsZero() {
		m.alarm.by(now.Add(max(due.Sub(now), leastWait)), now)
	}
}

// close closes the mailbox. It may be called again.
func (m *mail) close() {
	m.mu.Lock()
	m.alarm.stop()
	m.mu.Unlock()
	if !m.opened.Load() {
		return
	}
	if err := m.store.Close(); err != nil {
		m.log.Error("the mailbox file was not closed well; nothing that was accepted is lost, but what was delivered last may come again", "error", err)
	}
}

// errNoFile is the answer to who wants a copy of what is in memory.
var errNoFile = errors.New("the mailbox is in memory alone; offline_queue.file gives it a file, which can be copied")

// BackupMailbox writes a copy of the mailbox file to w, as it is at one moment:
// it is a mailbox file itself, encrypted with the same key. The relay goes on
// meanwhile, however slow w is. It needs room for the copy beside the file.
func (s *Server) BackupMailbox(w io.Writer) error {
	if !s.mail.opened.Load() || s.mail.file == nil {
		return errNoFile
	}
	return s.mail.file.Copy(w)
}

// mailLimit names to clients what the mailbox has refused a message for.
var mailLimit = map[mailbox.Limit]wire.Limit{
	mailbox.LimitRecipientMessages: wire.LimitMailboxMessages,
	mailbox.LimitSteady:            wire.LimitMailboxSteady,
	mailbox.LimitRecipientBytes:    wire.LimitMailboxBytes,
	mailbox.LimitStrangers:         wire.LimitMailboxStrangers,
	mailbox.LimitStrangerSource:    wire.LimitMailboxStrangerSource,
	mailbox.LimitTotalBytes:        wire.LimitMailboxTotal,
	mailbox.LimitSource:            wire.LimitMailboxSource,
	mailbox.LimitStorage:           wire.LimitMailboxStorage,
}

// keep has the mailbox hold a message for peer, who is away, or for whom older
// ones of this sender wait there. The sender is not read while it waits for a disk.
func (c *session) keep(f *wire.Send, peer wire.Identity) {
	s, now := c.server, time.Now()
	c.settle()
	c.weigh(true)
	err := s.mail.put(mailbox.Message{
		Recipient: peer, Sender: c.identity, ID: f.ID, Payload: f.Payload,
		Source: s.sources.prefix(c.about.client), Contact: true,
	}, now)
	c.weigh(false)
	if after := time.Now(); after.Sub(now) >= time.Second {
		// Who is not read cannot be idle, nor can its pongs be late.
		c.lastMessage = after
		c.out.forgive(after)
	}
	if err == nil {
		c.tell(wire.MessageAck{ID: f.ID})
		s.arrived(peer) // who may have come meanwhile
		return
	}
	refusal, ok := errors.AsType[*mailbox.Refusal](err)
	if !ok { // it is closed
		refusal = &mailbox.Refusal{Limit: mailbox.LimitStorage}
	}
	s.count.reject(ReasonQueueOverflow)
	c.tell(wire.RateLimited{
		Refused:        wire.Refused{Frame: wire.TypeSend, MessageID: f.ID},
		Limit:          mailLimit[refusal.Limit],
		RetryAfterSecs: uint32(max(1, refusal.RetryAfter/time.Second)),
	})
}

// arrived has what waits for an identity handed to its connection, or has the
// identity woken, and reports whether it is connected.
func (s *Server) arrived(id wire.Identity) (connected bool) {
	if connected = s.dir.wake(id); !connected {
		s.push.Wake(id)
	}
	return connected
}

// acknowledged forgets what the client has.
func (c *session) acknowledged(ids []wire.MessageID, now time.Time) {
	if c.identified && c.server.mail.store.Ack(c.identity, ids, now) > 0 {
		c.backlog()
	}
}

// hand writes what waits in the relay's stores for this client, a little of it,
// and has the writer come back for more. It goes past the queue, so that a backlog
// of any length takes nobody's place there.
func (c *session) hand(buf []byte) error {
	k, r := c.server.dir.waiting(c)
	var frames []wire.Frame
	held := 0 // as it was read, and as it is written
	if k != nil {
		frames = append(frames, wire.Knock{Asker: k.pair.from, Content: k.content})
		held += len(k.content)
	}
	if r != nil {
		for _, h := range c.server.mail.next(r, time.Now()) {
			frames = append(frames, wire.Message{Stored: true, Sender: h.Sender, ID: h.ID, Payload: h.Payload})
			held += 2 * len(h.Payload)
		}
	}
	if len(frames) == 0 {
		return nil
	}
	c.out.account.add(held)
	defer c.out.account.add(-held)
	c.server.outboundBudget.makeRoom()
	buf = buf[:0]
	for _, m := range frames {
		f := message(m)
		var err error
		if len(buf) > 0 && len(buf)+len(f.buf) > cap(buf) {
			err = c.io.WriteAll(buf, writerStall)
			buf = buf[:0]
		}
		if len(f.buf) <= cap(buf) {
			buf = append(buf, f.buf...)
		} else if err == nil {
			err = c.io.WriteAll(f.buf, writerStall)
		}
		f.free()
		if err != nil {
			return err
		}
	}
	if len(buf) > 0 {
		if err := c.io.WriteAll(buf, writerStall); err != nil {
			return err
		}
	}
	c.backlog()
	return nil
}

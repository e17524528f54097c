package relaycore

import (
	"cmp"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"time"

	"relayedge/admission"
	"relayedge/internal/socket"
	"relayedge/relaycore/websocket"
	"relayedge/relaycore/wire"
)

// The times of a session that cannot be configured.
const (
	pingMin     = 25 * time.Second
	pingMax     = 35 * time.Second
	pongLate    = 60 * time.Second // from the end of the ping's write
	queueWait   = 5 * time.Second  // for room in a recipient's queue
	writerStall = 30 * time.Second // without a byte taken while bytes wait
	lastWords   = time.Second      // for the close frame to arrive, and for the client to have read it
	lastWord    = time.Second / 10 // for the close frame alone, where too many have last words
)

// Hellos and publishes that one connection may send.
var authRate = admission.Rate{N: 1, Per: 10 * time.Second, Burst: 6}

// messageOverhead is what each message costs of the byte bucket beside its length.
const messageOverhead = 256

// ending is why a session ends, and what its client is told. Without a code
// there is no close frame and nothing more is written.
type ending struct {
	reason Reason // counted, unless empty
	code   websocket.Code
	text   string
}

// told is the ending in a word for the log.
func (e ending) told() string {
	return cmp.Or(string(e.reason), e.text, "closed")
}

// Private close codes (RFC 6455, section 7.4.2).
const codeReplaced websocket.Code = 4001

// The endings. gone is a client that closed or broke the connection.
var (
	gone            = ending{}
	endIdle         = ending{ReasonIdleTimeout, websocket.CodePolicy, "idle_timeout"}
	endUnidentified = ending{ReasonIdentification, websocket.CodePolicy, "identification_timeout"}
	endAuthRate     = ending{ReasonAuthRate, websocket.CodePolicy, "auth_rate"}
	endUnknownFrame = ending{ReasonUnknownFrame, websocket.CodePolicy, "unknown_frame"}
	endOversized    = ending{ReasonOversizedFrame, websocket.CodeTooBig, "oversized_frame"}
	endSlowConsumer = ending{reason: ReasonSlowConsumer}
	endWriterStall  = ending{reason: ReasonWriterStall}
	endOutboundShed = ending{reason: ReasonOutboundShed}
	endBufferShed   = ending{reason: ReasonBufferShed}
	endReplaced     = ending{code: codeReplaced, text: "replaced"}
	endDrain        = ending{code: websocket.CodeGoingAway, text: "drain"}
	endVersion      = ending{code: websocket.CodeProtocolError, text: "version"}
	endMalformed    = ending{code: websocket.CodeInvalidData, text: "malformed"}
)

// readSize is how much one read takes. A session whose reading is paused keeps
// its buffer, so it is not larger than bulk transfer needs.
const readSize = 16 << 10

var readBuffers = socket.NewPool(readSize)

// session is one client's WebSocket session.
type session struct {
	// Static.
	server  *Server
	limits  *Limits // those of its start: its times and sizes are what WELCOME has told
	lease   *admission.Lease
	source  source
	about   about
	started time.Time // accept
	binding *[32]byte // of the client's TLS session, if it reached us
	io      *socket.Socket

	// The reader's.
	parser      *websocket.Parser
	lastMessage time.Time // the end of the client's latest whole message, or the start
	identified  bool
	identity    wire.Identity // once identified
	pingAt      time.Time
	pingNumber  uint64
	armed       time.Duration // the read deadline in force, from started
	greeting    *greeting     // nil: neither HELLO nor PUBLISH has come
	bytes       admission.Bucket
	pausedUntil time.Time // no reading before; zero: reading
	weight      int       // what buffers was charged for
	firstOwed   *session  // for whom it must write before it waits; nil: nobody
	lastOwed    *session

	buffers account // what is held of what the client sends

	// Guarded by directory.mu.
	member *membership

	// Guarded by outbound.mu.
	out outbound

	// Its writer's, who may be another session's reader: the next in that one's list.
	nextOwed *session

	// Guarded by mu, which is never taken with another lock held.
	mu    sync.Mutex
	ended bool
	why   ending
	done  chan struct{} // closed at the end; nil: nobody waits for it
}

// greeting is what a session has from its first HELLO on.
type greeting struct {
	auth    admission.Bucket // of hellos and publishes
	welcome bool             // WELCOME was sent with nonce
	nonce   [32]byte
}

func (s *Server) newSession(nc net.Conn, lease *admission.Lease, who about, started time.Time, binding *[32]byte) *session {
	now := time.Now()
	c := &session{
		server:      s,
		limits:      s.inForce.Load().limits,
		lease:       lease,
		source:      s.sources.of(who.client),
		about:       who,
		started:     started,
		binding:     binding,
		member:      &notYet,
		io:          socket.New(nc, readBuffers),
		parser:      websocket.NewParser(wire.MaxPublish),
		lastMessage: now,
		pingAt:      now.Add(pingDelay()),
	}
	payer := s.sources.payer(c.source)
	c.out.account.open(s.outboundBudget, c, payer)
	c.buffers.open(s.bufferBudget, c, payer)
	return c
}

func pingDelay() time.Duration {
	return pingMin + rand.N(pingMax-pingMin+1)
}

// end ends the session, for the first reason that is given. It never waits: the
// session's own goroutine wakes and does the rest.
func (c *session) end(why ending) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return
	}
	c.ended, c.why = true, why
	if c.done != nil {
		close(c.done)
	}
	c.io.SetReadDeadline(time.Unix(1, 0))
}

// arm sets the read deadline, unless the session has ended: end's own deadline must stay.
func (c *session) arm(t time.Time) {
	armed := t.Sub(c.started)
	if armed == c.armed {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.ended {
		c.io.SetReadDeadline(t)
		c.armed = armed
	}
}

func (c *session) over() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ended
}

// closed is a channel that is.
var closed = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// whenOver returns a channel that is closed once the session has ended. Most
// sessions never need one.
func (c *session) whenOver() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.ended:
		return closed
	case c.done == nil:
		c.done = make(chan struct{})
	}
	return c.done
}

// run is the session, from the upgrade to its end. rest is what came behind the upgrade.
func (c *session) run(rest []byte) {
	defer c.finish()
	defer c.contain()
	c.weigh(false)
	if len(rest) > 0 {
		c.consume(rest)
		c.settle()
	}
	for !c.over() {
		if !c.hold(false) {
			return
		}
		c.arm(c.tick(time.Now(), true))
		p, err := c.io.ReadReady()
		c.consume(p)
		c.io.Release()
		c.settle()
		if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			c.end(gone)
		}
	}
}

// contain turns a panic of this session's goroutines into the end of this session.
func (c *session) contain() {
	if fault := recover(); fault != nil {
		c.server.panicked(fault, &c.about)
		c.server.count.reject(ReasonTaskPanic)
		c.end(gone)
	}
}

// consume takes bytes that were read. It returns when all are used or the session has ended.
func (c *session) consume(in []byte) {
	for len(in) > 0 {
		ev, n, err := c.parser.Next(in)
		if err != nil {
			v, _ := errors.AsType[*websocket.Violation](err)
			if v.Code == websocket.CodeTooBig {
				c.end(endOversized)
				return
			}
			c.server.count.malformed.Add(1)
			c.end(ending{code: v.Code, text: v.Text})
			return
		}
		in = in[n:]
		c.weigh(false)
		if ev.Op == websocket.Continuation {
			continue
		}
		c.event(ev)
		c.parser.Forget()
		// With nothing left, the read buffer need not wait too.
		if len(in) > 0 && !c.hold(true) {
			return
		}
	}
}

// weigh brings what is charged for the client's unfinished message up to date.
// A read buffer counts while it waits with the session, for that may be long;
// a socket that is read plainly always has one.
func (c *session) weigh(waits bool) {
	n := c.parser.Buffered()
	if waits || !c.io.ByReadiness() {
		n += readSize
	}
	more := n - c.weight
	if more == 0 {
		return
	}
	c.weight = n
	c.buffers.add(more)
	if more > 0 {
		c.server.bufferBudget.makeRoom()
	}
}

// event takes one message or control frame.
func (c *session) event(ev websocket.Event) {
	now := time.Now()
	if wait := c.bytes.Charge(c.server.inForce.Load().byteRate, int64(len(ev.Payload)+messageOverhead), now); wait > 0 {
		c.server.count.reject(ReasonRateLimit)
		c.pausedUntil = now.Add(wait)
	}
	switch ev.Op {
	case websocket.Binary:
		c.lastMessage = now
		c.frame(ev.Payload, now)
	case websocket.Ping:
		c.answerPing(ev.Payload)
	case websocket.Pong:
		if len(ev.Payload) == 8 && c.out.ponged(binary.BigEndian.Uint64(ev.Payload)) {
			c.parser.Asked()
		}
	case websocket.Close:
		code, _, _ := websocket.ParseClose(ev.Payload)
		if code == websocket.CodeNone {
			code = websocket.CodeNormal
		}
		c.end(ending{code: code})
	}
}

// hold waits while the session may not be read: its byte bucket is in debt, or
// its own answers pile up; buffer says that a read buffer waits with it. It
// reports false when the session has ended. It gives back what consume has let go of.
func (c *session) hold(buffer bool) bool {
	defer c.weigh(false)
	for !c.over() {
		roomy := c.out.crowded()
		if c.pausedUntil.IsZero() && roomy == nil {
			return true
		}
		now := time.Now()
		if !c.pausedUntil.IsZero() && !now.Before(c.pausedUntil) {
			c.pausedUntil, c.lastMessage = time.Time{}, now
			c.out.forgive(now)
			continue
		}
		c.settle()
		until := c.tick(now, false)
		if !c.pausedUntil.IsZero() {
			if c.pausedUntil.Before(until) {
				until = c.pausedUntil
			}
			roomy = nil
		}
		c.weigh(buffer)
		timer := time.NewTimer(until.Sub(now))
		select {
		case <-timer.C:
		case <-roomy:
			c.lastMessage = time.Now()
			c.out.forgive(c.lastMessage)
		case <-c.whenOver():
		}
		timer.Stop()
	}
	return false
}

// tick does what is due at now and returns when something is due next. A
// session that is not read cannot be idle, nor can its pongs be late.
func (c *session) tick(now time.Time, reading bool) (next time.Time) {
	l := c.limits
	if !reading {
		c.lastMessage = now
	}
	next = c.lastMessage.Add(secs(l.ConnectionTimeoutSecs))
	if !now.Before(next) {
		c.end(endIdle)
	}
	if !c.identified {
		by := c.started.Add(secs(l.IdentificationTimeoutSecs))
		if !now.Before(by) {
			c.end(endUnidentified)
		}
		if by.Before(next) {
			next = by
		}
	}
	if !reading {
		return next
	}
	if written, waiting := c.out.overdue(); waiting {
		by := written.Add(pongLate)
		if !now.Before(by) {
			c.end(endIdle)
		}
		if by.Before(next) {
			next = by
		}
	}
	if !now.Before(c.pingAt) {
		c.ping()
		if c.identified {
			c.backlog()
		}
		c.pingAt = now.Add(pingDelay())
	}
	if c.pingAt.Before(next) {
		next = c.pingAt
	}
	return next
}

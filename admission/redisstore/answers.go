package redisstore

import (
	"errors"
	"net"
	"sync/atomic"
)

// The bounds of what a server answers. What the scripts answer is within them by far,
// and so is what clusters and sentinels say of themselves.
const (
	maxTextBytes = 4 << 20
	maxLineBytes = 64 << 10
	maxItems     = 128 << 10
	maxNesting   = 16
)

var errNoStore = errors.New("what answers is no Redis")

// checkedConn is a connection on which nothing comes that the client takes for
// true and cannot bear: it would make room for a text of whatever length is
// announced, and takes an answer that nobody asked for as a reason to end the
// process, on a goroutine where nobody can recover it. What answers so is no Redis,
// or one that has lost its way: the connection fails.
type checkedConn struct {
	net.Conn
	counted bool  // answers are only those that were asked for
	in      parse // the reader's
	out     parse // the writer's

	asked, answered atomic.Int64
}

func (c *checkedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	values, ok := c.in.feed(p[:n])
	if ok && c.counted {
		ok = c.answered.Add(values) <= c.asked.Load()
	}
	if !ok {
		c.Conn.Close()
		return 0, errNoStore
	}
	return n, err
}

func (c *checkedConn) Write(p []byte) (int, error) {
	values, _ := c.out.feed(p) // its first byte is enough to be answered
	c.asked.Add(values)
	return c.Conn.Write(p)
}

// parse follows values of RESP as they come, and keeps nothing of them.
type parse struct {
	kind   byte   // of the line that is being read; 0: the next byte is a kind
	line   int    // bytes of it so far
	length int64  // that it has announced
	digits int    // of that
	minus  bool   // before them
	text   int64  // bytes of a text that are still to come, its end of line too
	open   []list // the lists that are not complete
}

// list is one that is not complete.
type list struct {
	left int64 // items
	push bool
}

// feed takes what has come, and returns how many values are complete by it that
// are no pushes, and whether all is within bounds.
func (r *parse) feed(p []byte) (values int64, ok bool) {
	for len(p) > 0 {
		if r.text > 0 {
			n := min(r.text, int64(len(p)))
			r.text -= n
			if p = p[n:]; r.text == 0 {
				values += r.complete()
			}
			continue
		}
		b := p[0]
		p = p[1:]
		switch {
		case r.kind == 0:
			*r = parse{kind: b, open: r.open}
		case b == '\n':
			n, ok := r.endLine()
			if !ok {
				return values, false
			}
			values += n
		default:
			if r.line++; r.line > maxLineBytes || !r.lengthByte(b) {
				return values, false
			}
		}
	}
	return values, true
}

// lengthByte reads a length, where the line is one.
func (r *parse) lengthByte(b byte) bool {
	switch r.kind {
	case '$', '=', '!', '*', '~', '>', '%':
	default:
		return true
	}
	switch {
	case b == '\r':
	case b == '-' && r.line == 1:
		r.minus = true
	case b >= '0' && b <= '9' && r.digits < 10:
		r.digits++
		r.length = r.length*10 + int64(b-'0')
	default:
		return false
	}
	return true
}

func (r *parse) endLine() (values int64, ok bool) {
	kind := r.kind
	r.kind = 0
	most := int64(maxItems)
	switch kind {
	case '+', '-', ':', '_', ',', '#', '(':
		return r.complete(), true
	case '$', '=', '!':
		most = maxTextBytes
	case '*', '~', '>', '%':
	default:
		return 0, false // of no kind that a server has been asked for
	}
	if r.minus {
		return r.complete(), r.length == 1 && (kind == '$' || kind == '*')
	}
	if r.digits == 0 || r.length > most {
		return 0, false
	}
	switch {
	case most == maxTextBytes:
		r.text = r.length + 2
	case r.length == 0:
		if kind == '>' && len(r.open) == 0 {
			return 0, true
		}
		return r.complete(), true
	case len(r.open) == maxNesting:
		return 0, false
	case kind == '%':
		r.open = append(r.open, list{left: 2 * r.length})
	default:
		r.open = append(r.open, list{r.length, kind == '>'})
	}
	return 0, true
}

// complete ends a value, and the lists that end with it.
func (r *parse) complete() (values int64) {
	for len(r.open) > 0 {
		last := &r.open[len(r.open)-1]
		if last.left--; last.left > 0 {
			return 0
		}
		push := last.push
		if r.open = r.open[:len(r.open)-1]; push {
			return 0 // it stands by itself, and is no answer
		}
	}
	return 1
}

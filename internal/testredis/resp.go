package testredis

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"
)

// conn is a connection to a server. It has no client's cleverness, so that a test
// sees what the server holds and nothing else.
type conn struct {
	net.Conn
	in *bufio.Reader
}

func (s *Server) dial() (*conn, error) {
	c, err := net.DialTimeout("unix", s.Socket, patience)
	if err != nil {
		return nil, err
	}
	c.SetDeadline(time.Now().Add(patience))
	return &conn{c, bufio.NewReader(c)}, nil
}

func (c *conn) ask(command ...string) (any, error) {
	var b strings.Builder
	fmt.Fprintf(&b, "*%d\r\n", len(command))
	for _, word := range command {
		fmt.Fprintf(&b, "$%d\r\n%s\r\n", len(word), word)
	}
	if _, err := io.WriteString(c, b.String()); err != nil {
		return nil, err
	}
	return c.answer()
}

func (c *conn) answer() (any, error) {
	line, err := c.in.ReadString('\n')
	if err != nil {
		return nil, err
	}
	line = strings.TrimSuffix(line, "\r\n")
	if line == "" {
		return nil, errProtocol
	}
	kind, rest := line[0], line[1:]
	switch kind {
	case '+':
		return rest, nil
	case '-':
		return nil, errors.New(rest)
	}
	n, err := strconv.ParseInt(rest, 10, 64)
	if err != nil {
		return nil, errProtocol
	}
	switch {
	case kind == ':':
		return n, nil
	case n < 0:
		return nil, nil
	case kind == '$':
		text := make([]byte, n+2)
		_, err := io.ReadFull(c.in, text)
		return string(text[:n]), err
	case kind == '*':
		all := make([]any, n)
		for i := range all {
			if all[i], err = c.answer(); err != nil {
				return nil, err
			}
		}
		return all, nil
	}
	return nil, errProtocol
}

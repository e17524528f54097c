package redisstore

import (
	"fmt"
	"net"
	"strings"
	"testing"
	"time"
)

// What the client could not bear is told from what it can, however it is cut.
func TestAnswersAreChecked(t *testing.T) {
	for _, row := range []struct {
		text   string
		values int64
		ok     bool
	}{
		{"+OK\r\n", 1, true},
		{"-ERR it\r\n:5\r\n_\r\n,1.5\r\n#t\r\n(12\r\n", 6, true},
		{"$5\r\nab\r\nc\r\n$0\r\n\r\n$-1\r\n*-1\r\n*0\r\n%0\r\n", 6, true},
		{"=7\r\ntxt:abc\r\n!3\r\nERR\r\n", 2, true},
		{"*2\r\n$1\r\na\r\n*1\r\n:1\r\n", 1, true},
		{"%2\r\n+a\r\n:1\r\n+b\r\n~1\r\n:1\r\n", 1, true},
		{">2\r\n+a\r\n+b\r\n>0\r\n+OK\r\n", 1, true},
		{"*2\r\n+a\r\n", 0, true},
		{strings.Repeat("*1\r\n", maxNesting) + ":1\r\n", 1, true},
		{strings.Repeat("*1\r\n", maxNesting+1) + ":1\r\n", 0, false},
		{fmt.Sprintf("$%d\r\n", maxTextBytes), 0, true},
		{fmt.Sprintf("$%d\r\n", maxTextBytes+1), 0, false},
		{fmt.Sprintf("*%d\r\n", maxItems), 0, true},
		{fmt.Sprintf("*%d\r\n", maxItems+1), 0, false},
		{"$99999999999999999\r\n", 0, false},
		{"*99999999999999\r\n", 0, false},
		{"$-2\r\n", 0, false},
		{"%-1\r\n", 0, false},
		{"$\r\n", 0, false},
		{"$?\r\n", 0, false},
		{"|1\r\n", 0, false},
		{"+" + strings.Repeat("a", maxLineBytes+1), 0, false},
		{"HTTP/1.1 400 Bad Request\r\n", 0, false},
	} {
		for size := 1; size <= len(row.text); size += max(1, len(row.text)/8) {
			var r parse
			var values int64
			ok := true
			for rest := []byte(row.text); ok && len(rest) > 0; rest = rest[min(size, len(rest)):] {
				var n int64
				n, ok = r.feed(rest[:min(size, len(rest))])
				values += n
			}
			if ok != row.ok || ok && values != row.values {
				t.Errorf("%.40q in pieces of %d: %d, %v", row.text, size, values, ok)
			}
		}
	}
}

// Whatever answers in the place of the store, it is away and no more.
func TestStoreThatIsNone(t *testing.T) {
	t.Parallel()
	for _, answer := range []string{
		"HTTP/1.1 400 Bad Request\r\n\r\n", "$99999999999999999\r\n", "$1000000000000\r\n", "$-5\r\n", "*99999999999999\r\n",
		strings.Repeat("*1\r\n", 1000), strings.Repeat("+OK\r\n", 50), "+" + strings.Repeat("a", 1<<20),
	} {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		answered := make(chan struct{}, 1)
		go func() {
			for {
				conn, err := listener.Accept()
				if err != nil {
					return
				}
				go func() {
					defer conn.Close()
					for p := make([]byte, 4096); ; {
						if _, err := conn.Read(p); err != nil {
							return
						}
						conn.Write([]byte(answer))
						select {
						case answered <- struct{}{}:
						default:
						}
					}
				}()
			}
		}()
		cfg := withDefaults(t, Config{URL: URL("redis://" + listener.Addr().String())})
		store, err := Open(cfg, quiet(t))
		if err != nil {
			t.Fatal(err)
		}
		select {
		case <-answered:
		case <-time.After(time.Minute):
			t.Fatal("nobody asked")
		}
		if !store.Away() {
			t.Errorf("%.20q makes a store", answer)
		}
		store.Close()
		listener.Close()
	}
}

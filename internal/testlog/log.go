// Package testlog keeps what a test's process or logger writes, to be read while
// more comes.
package testlog

import (
	"strings"
	"sync"
)

// Log is a writer that keeps all that is written. Its zero value is empty; its
// methods may be called from any goroutine.
type Log struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *Log) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

// String returns all that was written so far.
func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

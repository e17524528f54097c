package mailbox

import (
	"errors"
	"time"

	"relayedge/internal/keyfault"
)

// Config is the offline_queue section of the relay. The tags are read by the
// policy file. The two caps in bytes stand with the relay's limits.
type Config struct {
	TTLSecs          int    `key:"ttl_secs" default:"259200" min:"3600" max:"259200" doc:"lifetime of a queued message"`
	KnockBudgetBytes int    `key:"knock_budget_bytes" default:"16777216" min:"81920" max:"1073741824" doc:"bytes of queued message requests, separate from messages"`
	File             string `key:"file" default:"" path:"true" doc:"encrypted file that keeps the queue over a restart; empty: the queue is in memory alone"`
	KeyFile          string `key:"key_file" default:"" path:"true" doc:"key of that file: 64 hexadecimal digits, which others may not read"`
}

// DefaultConfig returns the defaults of the policy file.
func DefaultConfig() Config {
	return Config{TTLSecs: 259200, KnockBudgetBytes: 16 << 20}
}

// Validate returns an error that names every value that is out of range or
// does not fit another.
func (c Config) Validate() error {
	var errs []error
	within := func(key string, v, low, high int) {
		if v < low || v > high {
			errs = append(errs, keyfault.New(key, "%d is out of range, allowed is %d to %d", v, low, high))
		}
	}
	within("ttl_secs", c.TTLSecs, 3600, 259200)
	within("knock_budget_bytes", c.KnockBudgetBytes, 81920, 1<<30)
	switch {
	case c.File != "" && c.KeyFile == "":
		errs = append(errs, keyfault.New("key_file", "is empty, but file is written: the file is always encrypted; make a key with openssl rand -hex 32 and name its file here"))
	case c.File == "" && c.KeyFile != "":
		errs = append(errs, keyfault.New("file", "is empty, but key_file is written; name the file that the key is for, or take key_file out"))
	case c.File != "" && c.File == c.KeyFile:
		errs = append(errs, keyfault.New("key_file", "is the same file as file; the key has a file of its own"))
	}
	return errors.Join(errs...)
}

// TTL is the lifetime of a message.
func (c Config) TTL() time.Duration { return time.Duration(c.TTLSecs) * time.Second }

// Limits are what a store holds at most. They have been validated where they
// come from: [Config.TTL], and the relay's offline_queue_max_total_bytes and
// offline_queue_max_bytes_per_recipient.
type Limits struct {
	TotalBytes     int64
	RecipientBytes int64
	TTL            time.Duration
	// Sources says that addresses tell senders apart. Without it the shares of
	// single sources are off: all senders look like one.
	Sources bool
}

// The caps that cannot be configured.
const (
	MaxMessages = 1000 // for one recipient
	MaxSteady   = 500  // of them, of the length SteadySize
	SteadySize  = 1226 // payload of a steady message, in bytes
	MaxTracked  = 100_000
)

// caps are the fixed limits; tests make them small.
type caps struct {
	messages, steady int
	portionBytes     int // handed to a reader at one time, a first message of any length aside
	tracked          int // messages in flight to all readers
	window           int // messages in flight to one reader
	windowBytes      int // their payloads, a first message of any length aside
}

func fixedCaps() caps {
	return caps{messages: MaxMessages, steady: MaxSteady, tracked: MaxTracked, window: 64, windowBytes: 1 << 20, portionBytes: 32 << 10}
}

// The shares of strangers in one mailbox and of one source in the total.
const (
	StrangersPart = 4  // all strangers: a quarter
	StrangerPart  = 16 // one source of strangers: a sixteenth
	SourcePart    = 16 // one source in the total: a sixteenth
)

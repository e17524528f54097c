package redisstore

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/rueidis"
)

//go:embed record.lua
var recordScript string

const (
	// MaxRecordBytes bounds a record's value.
	MaxRecordBytes = 1 << 20
	// maxNameBytes bounds a record's name, and that of a lock.
	maxNameBytes = 1024
	// maxRecords bounds how many records a space has.
	maxRecords = 8192
	// recordWait is how long an operation on records waits for the store. They are
	// none of the decisions, whose budget is far less.
	recordWait = 2 * time.Second
	// recordRest follows one that got no answer: meanwhile all others fail at once,
	// so that who does many of them does not wait for each.
	recordRest = time.Second

	// maxFaultBytes bounds what is told of the server's words.
	maxFaultBytes = 200
)

var (
	errUnanswered = errors.New("the store does not answer")
	errFull       = fmt.Errorf("the store holds %d records of its kind already", maxRecords)
	errTooLarge   = fmt.Errorf("a record of more than %d bytes is not stored", MaxRecordBytes)
	errName       = fmt.Errorf("the name of a record is 1 to %d bytes of printable ASCII", maxNameBytes)
)

// Records are values with names in the store, which several processes share:
// certificates and their keys, and secrets. Each is sealed by a key that follows
// from the secret of secret_file, under its name. They live in spaces, each a world
// of its own. Names are paths, with / between their parts, and stand in the store as
// they are; so they hold nothing that the store must not learn.
//
// An operation waits two seconds for the store, at most as long as its context says;
// whether the store is away for decisions is no matter to it. A record that is not there
// is an error that is fs.ErrNotExist; one that cannot be opened is ErrSealed.
type Records struct {
	store  *Store
	script *script
	sealer *sealer
	list   string // key of the space's names; the other keys begin with it

	mu      sync.Mutex
	resting time.Time // until then nothing is asked
}

// Records returns the records of a space, a word of ours. It reads secret_file.
func (s *Store) Records(space string) (*Records, error) {
	secret, err := s.cfg.Secret()
	if err != nil {
		return nil, err
	}
	sealer, err := newSealer(secret)
	if err != nil {
		return nil, err
	}
	return &Records{
		store: s, script: newScript(serverClock, recordScript), sealer: sealer,
		list: s.cfg.Prefix + ":{records}:" + space,
	}, nil
}

func (r *Records) key(name string) string { return r.list + ":" + name }

// Get returns the value of a record.
func (r *Records) Get(ctx context.Context, name string) ([]byte, error) {
	value, _, err := r.get(ctx, name)
	return value, err
}

// stored is a record as the store has it.
type stored struct {
	sealed []byte
	left   time.Duration // how long it is still kept
}

func (r *Records) get(ctx context.Context, name string) (value []byte, s stored, err error) {
	if !validName(name) {
		return nil, s, errName
	}
	most := strconv.Itoa(MaxRecordBytes + sealBytes)
	answer, err := r.do(ctx, "get", name, most)
	if err != nil {
		return nil, s, err
	}
	pair, err := answer.ToArray()
	if err != nil || len(pair) != 2 {
		return nil, s, errNoAnswer
	}
	if pair[0].IsNil() {
		return nil, s, fmt.Errorf("%s: %w", name, fs.ErrNotExist)
	}
	text, err := pair[0].ToString()
	left, errLeft := pair[1].AsInt64()
	if err != nil || errLeft != nil {
		return nil, s, errNoAnswer
	}
	s = stored{[]byte(text), time.Duration(left) * time.Millisecond}
	if value, err = r.sealer.open(r.key(name), s.sealed); err != nil {
		return nil, s, fmt.Errorf("%s: %w", r.key(name), err)
	}
	return value, s, nil
}

func (r *Records) sealed(name string, value []byte) []byte {
	return r.sealer.seal(r.key(name), value)
}

// Put stores a record for life, in place of the one of that name. Under the context
// of a lock ([Records.Hold]) it stores only while the lock is held: whoever lost it
// writes nothing over what another has written since.
func (r *Records) Put(ctx context.Context, name string, value []byte, life time.Duration) error {
	_, err := r.put(ctx, name, value, life)
	return err
}

func (r *Records) put(ctx context.Context, name string, value []byte, life time.Duration, expected ...string) (swapped bool, err error) {
	switch {
	case !validName(name):
		return false, errName
	case len(value) > MaxRecordBytes:
		return false, fmt.Errorf("%s: %w", name, errTooLarge)
	}
	lock, token, lost := fence(ctx, r)
	args := append([]string{"put", name, string(r.sealed(name, value)), milliseconds(life), strconv.Itoa(maxRecords), lock, token}, expected...)
	swapped, err = r.verdict(ctx, args...)
	lost(err)
	return swapped, err
}

// Delete removes a record, and all whose names are below its own; that nothing is
// there is no error. A lock binds it as it binds Put.
func (r *Records) Delete(ctx context.Context, name string) error {
	if !validName(name) {
		return errName
	}
	lock, token, lost := fence(ctx, r)
	_, err := r.verdict(ctx, "delete", name, lock, token)
	lost(err)
	return err
}

// List returns the names of a prefix: the record of that name and those below it;
// of the empty one, all.
func (r *Records) List(ctx context.Context, prefix string) ([]string, error) {
	if prefix != "" && !validName(prefix) {
		return nil, errName
	}
	answer, err := r.do(ctx, "list", prefix)
	if err != nil {
		return nil, err
	}
	names, err := answer.AsStrSlice()
	if err != nil {
		return nil, errNoAnswer
	}
	return names, nil
}

// Keep has the records of a prefix live for life from now on, or longer.
func (r *Records) Keep(ctx context.Context, prefix string, life time.Duration) error {
	if !validName(prefix) {
		return errName
	}
	_, err := r.verdict(ctx, "keep", prefix, milliseconds(life))
	return err
}

// validName keeps keys to what can be read, and to what cannot be mistaken for a
// lock's or the list's.
func validName(name string) bool {
	return name != "" && len(name) <= maxNameBytes && !strings.ContainsFunc(name, func(c rune) bool { return c <= ' ' || c > '~' })
}

func milliseconds(d time.Duration) string {
	return strconv.FormatInt(max(1, d.Milliseconds()), 10)
}

// verdict runs a verb that answers with a word.
func (r *Records) verdict(ctx context.Context, args ...string) (ok bool, err error) {
	answer, err := r.do(ctx, args...)
	if err != nil {
		return false, err
	}
	switch word, _ := answer.ToString(); word {
	case "OK":
		return true, nil
	case "OTHER":
		return false, nil
	case "LOST":
		return false, ErrLost
	case "FULL":
		return false, errFull
	}
	return false, errNoAnswer
}

// do runs the script, and once more when the connection ended meanwhile: whatever it
// does may be done twice.
func (r *Records) do(ctx context.Context, args ...string) (answer rueidis.RedisMessage, err error) {
	if err := ctx.Err(); err != nil {
		return answer, err
	}
	client := r.store.client.Load()
	r.mu.Lock()
	rests := time.Now().Before(r.resting)
	r.mu.Unlock()
	if client == nil || rests {
		return answer, errUnanswered
	}
	within, cancel := context.WithTimeout(ctx, recordWait)
	defer cancel()
	for range 2 {
		answer, err = r.script.lua.Exec(within, *client, []string{r.list}, args).ToMessage()
		if err == nil || within.Err() != nil {
			break
		}
		if fault, ok := rueidis.IsRedisErr(err); ok {
			if fault.IsNil() {
				return answer, errNoAnswer
			}
			return answer, fmt.Errorf("the store: %s", plainFault(fault.Error()))
		}
	}
	switch {
	case err == nil:
		return answer, nil
	case ctx.Err() != nil:
		return answer, ctx.Err()
	}
	r.mu.Lock()
	r.resting = time.Now().Add(recordRest)
	r.mu.Unlock()
	return answer, errUnanswered
}

// plainFault is what the server says of a fault, without where in the script it was.
func plainFault(words string) string {
	words, _, _ = strings.Cut(words, " script:")
	return words[:min(len(words), maxFaultBytes)]
}

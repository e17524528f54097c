package certs

import (
	"bytes"
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"time"

	"relayedge/internal/plainfile"
)

const (
	// maxFileBytes bounds what is read of one file.
	maxFileBytes = 1 << 20
	// settleTime is longer than the coarsest file time stamps in use: a file that
	// was written again within one stamp looks unchanged until it is this old.
	settleTime = 3 * time.Second
	// loadTries bounds how often a pair is read while somebody writes it.
	loadTries = 3
)

// filePair is a certificate from files.
type filePair struct {
	FilePair
	log  *slog.Logger
	cert *tls.Certificate
	sans []string

	seen    pairStat // the files as they were when last read
	settled bool     // no later change can hide behind seen
	fault   string   // why what was read last is not served; empty when it is
	ended   bool     // the end of the certificate in force has been told
}

func openPair(pair FilePair, now time.Time, log *slog.Logger) (*filePair, error) {
	p := &filePair{FilePair: pair, log: log.With("certificate", pair.Certificate, "key", pair.Key)}
	cert, seen, err := pair.load()
	if err != nil {
		return nil, fmt.Errorf("certificate %s with key %s: %w", pair.Certificate, pair.Key, err)
	}
	p.seen, p.settled = seen, seen.settledAt(now)
	p.take(cert, now)
	return p, nil
}

func (p *filePair) names() []string               { return p.sans }
func (p *filePair) certificate() *tls.Certificate { return p.cert }

// take puts a certificate in force and warns of what clients will hold against it.
func (p *filePair) take(cert *tls.Certificate, now time.Time) {
	p.cert, p.sans, p.ended = cert, namesOf(cert.Leaf), now.After(cert.Leaf.NotAfter)
	switch {
	case p.ended:
		p.log.Warn("certificate has expired and is served all the same; renew it", "not_after", cert.Leaf.NotAfter)
	case now.Before(cert.Leaf.NotBefore):
		p.log.Warn("certificate is not valid yet and is served all the same; is the clock right?", "not_before", cert.Leaf.NotBefore)
	}
	if len(p.sans) == 0 {
		p.log.Warn("certificate holds no DNS name or IP address (subject alternative name), so it can only be served to clients that send no server name")
	}
}

// refresh reads the files when they changed, and at each look while what was
// read is not fit to be served: a key that was written before its certificate
// heals so, and a certificate that was not valid yet.
func (p *filePair) refresh(now time.Time) bool {
	if p.fault == "" && p.settled && p.stat().same(p.seen) {
		p.tellEnd(now)
		return false
	}
	cert, seen, err := p.load()
	p.seen, p.settled = seen, seen.settledAt(now)
	if err == nil {
		err = p.mayReplace(cert, now)
	}
	if err != nil {
		if text := err.Error(); text != p.fault {
			p.fault = text
			p.log.Error("changed certificate files are not used, the certificate in force stays", "error", err)
		}
		p.tellEnd(now)
		return false
	}
	healed := p.fault != ""
	p.fault = ""
	if slices.EqualFunc(cert.Certificate, p.cert.Certificate, bytes.Equal) {
		if healed {
			p.log.Info("certificate files hold the certificate in force again")
		}
		p.tellEnd(now)
		return false
	}
	before := p.cert.Leaf.NotAfter
	p.take(cert, now)
	if after := cert.Leaf.NotAfter; after.Before(before) {
		p.log.Warn("certificate replaced by one that expires EARLIER; was an old file put back?", "names", p.sans, "not_after", after, "before", before)
	} else {
		p.log.Info("certificate replaced", "names", p.sans, "not_after", after)
	}
	return true
}

// mayReplace refuses a certificate that would leave clients worse off than the
// one in force.
func (p *filePair) mayReplace(cert *tls.Certificate, now time.Time) error {
	next, held := cert.Leaf, p.cert.Leaf
	if now.After(next.NotAfter) && next.NotAfter.Before(held.NotAfter) {
		return fmt.Errorf("%s: expired at %s, before the certificate in force (%s)", p.Certificate, stamp(next.NotAfter), stamp(held.NotAfter))
	}
	if now.Before(next.NotBefore) && validAt(held, now) {
		return fmt.Errorf("%s: not valid before %s; it is taken then (is the clock right?)", p.Certificate, stamp(next.NotBefore))
	}
	return nil
}

// tellEnd logs once when the certificate in force expires for want of a newer one.
func (p *filePair) tellEnd(now time.Time) {
	if p.ended || !now.After(p.cert.Leaf.NotAfter) {
		return
	}
	p.ended = true
	p.log.Error("certificate has expired; renew its files", "not_after", p.cert.Leaf.NotAfter)
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// load reads and parses the pair.
func (p FilePair) load() (*tls.Certificate, pairStat, error) {
	var chain, key []byte
	var chainErr, keyErr error
	seen := p.still(func() {
		chain, chainErr = readFile(p.Certificate)
		key, keyErr = readFile(p.Key)
	})
	switch {
	case chainErr != nil && keyErr != nil:
		return nil, seen, fmt.Errorf("%w; %w", chainErr, keyErr)
	case chainErr != nil || keyErr != nil:
		return nil, seen, cmp.Or(chainErr, keyErr)
	}
	cert, err := p.parse(chain, key)
	return cert, seen, err
}

// still calls read, and again when the files changed meanwhile, so that a swap of
// both between the two reads is not taken for a mismatch. It returns the files as
// they were before the last read: a change after that shows at the next look.
func (p FilePair) still(read func()) (seen pairStat) {
	for range loadTries {
		seen = p.stat()
		read()
		if p.stat().same(seen) {
			break
		}
	}
	return seen
}

func readFile(path string) ([]byte, error) {
	f, err := plainfile.Open(path)
	if err != nil {
		return nil, explain(path, err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFileBytes+1))
	if err != nil {
		return nil, explain(path, err)
	}
	if len(data) > maxFileBytes {
		return nil, fmt.Errorf("%s: is larger than %d bytes; is it a PEM file?", path, maxFileBytes)
	}
	return data, nil
}

// explain says what to do about a file that cannot be read.
func explain(path string, err error) error {
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		err = e.Err // the path is in front already
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%s: %w; check the path", path, err)
	case errors.Is(err, plainfile.ErrKind):
		return fmt.Errorf("%s: is not a regular file", path)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%s: %w; let the user of this process read it", path, err)
	}
	return fmt.Errorf("%s: %w", path, err)
}

// pairStat is what the file system says of the two files, symbolic links
// followed; nil for one that cannot be looked at.
type pairStat [2]fs.FileInfo

func (p FilePair) stat() (s pairStat) {
	for i, path := range [...]string{p.Certificate, p.Key} {
		if info, err := os.Stat(path); err == nil {
			s[i] = info
		}
	}
	return s
}

func (s pairStat) same(t pairStat) bool {
	for i, a := range s {
		b := t[i]
		if a == nil || b == nil {
			if a != nil || b != nil {
				return false
			}
			continue
		}
		if !os.SameFile(a, b) || !a.ModTime().Equal(b.ModTime()) || a.Size() != b.Size() {
			return false
		}
	}
	return true
}

// settledAt tells whether both files were old enough, when they were read at
// now, for any later change to show.
func (s pairStat) settledAt(now time.Time) bool {
	for _, info := range s {
		if info != nil && now.Sub(info.ModTime()).Abs() < settleTime {
			return false
		}
	}
	return true
}

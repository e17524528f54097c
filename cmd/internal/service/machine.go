package service

import (
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"relayedge/admission/redisstore"
	"relayedge/cmd/internal/policy"
	"relayedge/internal/hostport"
	"relayedge/internal/logging"
	"relayedge/internal/plainfile"
	"relayedge/internal/policyfile"
	"relayedge/relaycore/mailbox"
)

// Machine is what check --machine looks at: whether what the policy names is
// there and can be had. It changes nothing: what it opens it closes again, and what
// it writes into a store ends in a second. A command's look calls its methods, which
// collect the faults.
type Machine struct {
	Policy *policy.Policy

	file     string
	limit    int       // of descriptors
	warnings io.Writer // where what is found but is no fault goes
	faults   []error
}

// Fault adds a fault of a key.
func (m *Machine) Fault(key, format string, args ...any) {
	at := m.file
	if origin := m.Policy.Origin(key); strings.HasPrefix(origin, m.file+":") {
		at = origin
	}
	m.faults = append(m.faults, fmt.Errorf("%s: %s: %s", at, key, fmt.Sprintf(format, args...)))
}

func (m *Machine) err() error { return errors.Join(m.faults...) }

// Log returns a logger for what is found on the way and is no fault.
func (m *Machine) Log() *slog.Logger {
	log, _ := logging.New(logging.Config{Level: "warn", Format: "text"}, m.warnings)
	return log
}

// Files opens every file that the policy names at or below one of the keys.
func (m *Machine) Files(keys ...string) {
	for _, f := range policyfile.Files(m.Policy) {
		if f.Key == mailboxFile {
			continue // it need not be there; Mailbox looks at it
		}
		if slices.ContainsFunc(keys, func(key string) bool { return policyfile.Below(f.Key, key) }) {
			m.open(f.Key, f.Text)
		}
	}
}

func (m *Machine) open(key, path string) {
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		m.openFolder(key, path)
		return
	}
	file, err := plainfile.Open(path)
	switch {
	case errors.Is(err, plainfile.ErrKind):
		m.Fault(key, "%s is no regular file; name one", path)
		return
	case err != nil:
		m.Fault(key, "%v; check the path and who may read it", err)
		return
	}
	defer file.Close()
	content, err := io.ReadAll(io.LimitReader(file, maxFile))
	if err != nil {
		m.Fault(key, "%v", err)
		return
	}
	if strings.HasSuffix(key, ".client_ca_file") && !x509.NewCertPool().AppendCertsFromPEM(content) {
		m.Fault(key, "%s holds no PEM certificate; write the CAs' certificates in it", path)
	}
}

func (m *Machine) openFolder(key, path string) {
	folder, err := os.Open(path)
	if err == nil {
		defer folder.Close()
		if _, err = folder.ReadDir(1); err == io.EOF {
			err = nil
		}
	}
	if err != nil {
		m.Fault(key, "%v; check who may read it", err)
	}
}

// mailboxFile is the key of the relay's mailbox file.
const mailboxFile = "relay.offline_queue.file"

// Mailbox looks at the relay's mailbox file, its folder and its key, if the
// policy names them. It takes the time that reading the file takes.
func (m *Machine) Mailbox() {
	q := m.Policy.Relay.OfflineQueue
	if q.File == "" {
		return
	}
	key, err := mailbox.ReadKey(q.KeyFile)
	if err != nil {
		m.Fault("relay.offline_queue.key_file", "%v", err)
		return
	}
	if err := mailbox.Look(q.File, key); err != nil {
		m.Fault(mailboxFile, "%v", err)
	}
}

// Store looks at the files of the redis section and tries its store, if there is one.
// It reports whether that decides.
func (m *Machine) Store() bool {
	cfg := m.Policy.Redis
	if !cfg.Enabled() {
		return false
	}
	_, secret := cfg.Secret()
	store := redisstore.Probe(cfg)
	for _, err := range []error{secret, store} {
		if err == nil {
			continue
		}
		key := "redis.url"
		if cfg.URLFile != "" {
			key = "redis.url_file"
		}
		text := err.Error()
		for _, named := range []string{"redis.url", "redis.url_file", "redis.secret_file", "redis.ca_file"} {
			if rest, ok := strings.CutPrefix(text, named+": "); ok {
				key, text = named, rest
			}
		}
		m.Fault(key, "%s", text)
	}
	return secret == nil && store == nil
}

// maxFile is how much of a file is read to see that it can be.
const maxFile = 16 << 20

// Bind listens where the key says, and closes again. A socket file is not made:
// its folder has to be there. What the service manager hands over is not looked at.
func (m *Machine) Bind(key, bind string) {
	b, err := hostport.ParseBind(bind)
	switch {
	case err != nil:
		m.Fault(key, "%v", err)
	case b.Path != "":
		if _, err := os.Stat(filepath.Dir(b.Path)); err != nil {
			m.Fault(key, "%v; make the folder", err)
		}
	case b.TCP():
		ln, err := b.Listen()
		if err != nil {
			m.Fault(key, "%v", err)
			return
		}
		ln.Close()
	}
}

// Descriptors holds the descriptor limit of this process, which has that of the
// shell or unit that it was started in, against the connections of the key.
func (m *Machine) Descriptors(key string, d Descriptors) {
	d.Limit = m.limit
	if d.Short() {
		m.Fault(key, "%d connections need %d descriptors, and this process may have %d, enough for %d; %s",
			d.Connections, d.Needed(), d.Limit, d.Room(), d.Advice(key))
	}
}

package redisstore

import (
	"errors"
	"fmt"
	"io"
	"runtime"
	"strings"

	"relayedge/internal/keyfault"
	"relayedge/internal/plainfile"
)

// Config is the redis section of the policy. Without a URL there is no store, and
// everything stays in this process.
type Config struct {
	URL        URL       `key:"url" default:"" doc:"where Redis or Valkey is, as in redis://host:6379; rediss:// for TLS, unix:///path for a socket, redis+sentinel://host,host/name and redis+cluster://host,host; empty: everything stays in this process"`
	URLFile    string    `key:"url_file" default:"" path:"true" doc:"a file that holds the url instead, for one with a password; of mode 600 or 640; empty: none"`
	SecretFile string    `key:"secret_file" default:"" path:"true" doc:"a file that holds the secret from which keys are made, at least 32 bytes, the same for all that share the store; of mode 600 or 640; openssl rand -hex 32 makes one"`
	CAFile     string    `key:"ca_file" default:"" path:"true" doc:"certificates in PEM that are trusted for rediss:// in place of the system's; empty: the system's"`
	Prefix     string    `key:"prefix" default:"relayedge" doc:"what every key in the store begins with; the same for all that count together"`
	OnFailure  OnFailure `key:"on_failure" doc:"what decides while the store is away"`
}

// OnFailure says, per use, what decides while the store is away: this process by
// itself, or nobody, so that requests are refused.
type OnFailure struct {
	RequestLimits string `key:"request_limits" default:"local" enum:"local|refuse" doc:"request limits: counted by each process alone, or every request refused as unavailable"`
	MessageLimits string `key:"message_limits" default:"local" enum:"local|refuse" doc:"message limits, likewise"`
	Budgets       string `key:"budgets" default:"local" enum:"local|refuse" doc:"budgets of wake-ups, likewise; refuse: none is sent"`
	Connections   string `key:"connections" default:"local" enum:"local|refuse" doc:"the caps over all edges: each edge holds its own alone, or every new connection refused as store_unavailable"`
}

// refuse is the other value of a use's on_failure than local.
const refuse = "refuse"

// Enabled reports whether the policy names a store.
func (c Config) Enabled() bool { return c.URL != "" || c.URLFile != "" }

// Validate returns every fault of the section, joined. No fault tells what stands
// in the URL.
func (c Config) Validate() error {
	var faults []error
	if c.URL != "" && c.URLFile != "" {
		faults = append(faults, keyfault.New("url_file", "url is written too; write one of the two"))
	}
	if c.URL != "" {
		if _, err := c.URL.parse(); err != nil {
			faults = append(faults, keyfault.New("url", "%w", err))
		}
	}
	if !c.Enabled() && (c.SecretFile != "" || c.CAFile != "") {
		faults = append(faults, keyfault.New("url", "is not written, so nothing would be shared; write the url of Redis or Valkey, as in redis://host:6379, or take the other keys of the section out"))
	}
	if c.Enabled() && c.SecretFile == "" {
		faults = append(faults, keyfault.New("secret_file", "is not written, and the store must not learn whom its keys count; "+
			"write the secret by openssl rand -hex 32 into a file of mode 600, the same for all that share the store, and name it here"))
	}
	if strings.Trim(c.Prefix, prefixLetters) != "" || c.Prefix == "" || len(c.Prefix) > maxPrefix {
		faults = append(faults, keyfault.New("prefix", "allowed are 1 to %d letters, digits, and any of - _ . :", maxPrefix))
	}
	return errors.Join(faults...)
}

const (
	prefixLetters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.:"
	maxPrefix     = 64

	minSecret     = 32
	maxSecretFile = 4 << 10
	maxURLFile    = 4 << 10
)

// Secret reads secret_file: at least 32 bytes, white space around them not counted.
// Its error tells nothing of what is inside.
func (c Config) Secret() ([]byte, error) {
	secret, err := readPrivate(c.SecretFile, maxSecretFile)
	if err != nil {
		return nil, fmt.Errorf("redis.secret_file: %w", err)
	}
	if len(secret) < minSecret {
		return nil, fmt.Errorf("redis.secret_file: %s holds %d bytes, allowed are at least %d; openssl rand -hex 32 makes a secret", c.SecretFile, len(secret), minSecret)
	}
	if strings.Trim(secret, secret[:1]) == "" {
		return nil, fmt.Errorf("redis.secret_file: %s holds one byte over and over, which is no secret; openssl rand -hex 32 makes one", c.SecretFile)
	}
	return []byte(secret), nil
}

// address returns where the store is, from the URL or its file.
func (c Config) address() (*address, error) {
	if c.URLFile == "" {
		a, err := c.URL.parse()
		if err != nil {
			return nil, fmt.Errorf("redis.url: %w", err)
		}
		return a, nil
	}
	text, err := readPrivate(c.URLFile, maxURLFile)
	if err != nil {
		return nil, fmt.Errorf("redis.url_file: %w", err)
	}
	a, err := URL(text).parse()
	if err != nil {
		return nil, fmt.Errorf("redis.url_file: %s: %w", c.URLFile, err)
	}
	return a, nil
}

// readPrivate reads a small file that its owner and at most its group can read,
// and its owner alone can write, without the white space around its text.
func readPrivate(path string, most int64) (string, error) {
	f, err := plainfile.Open(path)
	if errors.Is(err, plainfile.ErrKind) {
		return "", fmt.Errorf("%s is no regular file", path)
	} else if err != nil {
		return "", err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return "", err
	}
	if mode := info.Mode().Perm(); mode&0o027 != 0 && runtime.GOOS != "windows" {
		return "", fmt.Errorf("%s has mode %04o, so others can read it or its group can change it; chmod 600 it", path, mode)
	}
	text, err := io.ReadAll(io.LimitReader(f, most+1))
	if err != nil {
		return "", err
	}
	if int64(len(text)) > most {
		return "", fmt.Errorf("%s is larger than %d bytes", path, most)
	}
	return strings.TrimSpace(string(text)), nil
}

package proxy

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"

	"relayedge/admission"
	"relayedge/internal/plainfile"
)

// GateLimits returns the gate's limits with the networks of deny_file beside
// those of deny. It reads the file at every call. Its error begins with
// the key and the file, and says all that is wrong inside, a line each.
func (l Limits) GateLimits() (admission.Limits, error) {
	limits := l.Limits
	if l.DenyFile == "" {
		return limits, nil
	}
	denied, err := readDenyFile(l.DenyFile)
	if err != nil {
		return admission.Limits{}, fmt.Errorf("limits.deny_file: %w", err)
	}
	limits.Deny = slices.Concat(l.Deny, denied)
	return limits, nil
}

func readDenyFile(name string) ([]netip.Prefix, error) {
	f, err := plainfile.Open(name)
	switch {
	case errors.Is(err, plainfile.ErrKind):
		return nil, fmt.Errorf("%s is no regular file; name a file with one network a line", name)
	case err != nil:
		return nil, denyFileError(name, err)
	}
	defer f.Close()
	return admission.ReadNetworks(name, f)
}

// denyFileError says what to do about a file that cannot be opened.
func denyFileError(name string, err error) error {
	if cause, ok := errors.AsType[*fs.PathError](err); ok {
		err = cause.Err
	}
	advice := "check the path and who may read it"
	switch {
	case errors.Is(err, fs.ErrNotExist):
		advice = "check the path, or take the key out"
	case errors.Is(err, fs.ErrPermission):
		advice = "let the edge's user read it"
	}
	return fmt.Errorf("%s: %w; %s", name, err, advice)
}

package control

import (
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"

	"relayedge/internal/hostport"
	"relayedge/internal/keyfault"
)

// Config is the control section of the policy. A section with another default
// converts to it.
type Config struct {
	Socket string `key:"socket" default:"/run/relayedge/control.sock" path:"socket" doc:"unix socket that relayedge reload speaks to, for the user of the process alone; empty: none"`
}

// Validate holds the path to the rules of unix sockets.
func (c Config) Validate() error {
	if c.Socket == "" {
		return nil
	}
	if _, err := hostport.ParseBind(c.Bind()); err != nil {
		return keyfault.New("socket", "%w; write a path, or \"\" for no control socket", err)
	}
	return nil
}

// Bind is the socket as the policy writes one that is bound.
func (c Config) Bind() string { return "unix:" + c.Socket }

const (
	socketMode fs.FileMode = 0o600
	folderMode fs.FileMode = 0o700
)

// Listen listens on the socket of a valid cfg that has one. The file's mode is
// 0600; its folder is made, with mode 0700, where only that is missing. The
// error says what to do.
func Listen(cfg Config) (net.Listener, error) {
	// Where it fails for another reason than that it is there, listening says why.
	os.Mkdir(filepath.Dir(cfg.Socket), folderMode)
	ln, err := hostport.ListenUnix(cfg.Socket, socketMode)
	if err != nil {
		return nil, fmt.Errorf("%w; a unit of systemd makes its folder by RuntimeDirectory=, and control.socket names another place, or none by \"\"", err)
	}
	return ln, nil
}

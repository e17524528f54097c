package main_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

func TestPostfixBehindUs(t *testing.T) {
	t.Parallel()
	address := loopback4(t)
	p := postfix(t, recipe(t, "Postfix", "master.cf", "127.0.0.1:10465", address), address)

	t.Run("a health check", func(t *testing.T) {
		probe(t, address) // a reset is the end of smtpd: see docs/relays.md
		p.logs(t, `lost connection after CONNECT from unknown\[127\.0\.0\.1\]`)
	})
	t.Run("our largest header", func(t *testing.T) {
		smtp := newDialogue(direct(t, address, largest(t, named)))
		smtp.hear(t, `^220 `)
		p.logs(t, ` connect from unknown\[2001:db8::7\]:4711$`)
	})
	t.Run("without a header", func(t *testing.T) {
		smtp := newDialogue(direct(t, address, nil))
		smtp.say(t, "EHLO x")
		smtp.hear(t, `^421 4\.3\.0 .* Server local error$`)
		p.logs(t, `warning: haproxy read: .*EHLO`)
	})
	e := inFront(t, "Postfix", address)
	t.Run("the page's commands", func(t *testing.T) {
		e.showsOnConsole(t, "Postfix", "secure", &p.stdout, "127.0.0.1:10465", address)
	})
	logged := func(conn net.Conn) string {
		host, port, _ := net.SplitHostPort(conn.LocalAddr().String())
		return regexp.QuoteMeta("unknown[" + host + "]:" + port)
	}
	all := everyWay(t, e)
	all.each(t, "Postfix speaks first", func(t *testing.T, smtp *dialogue) {
		smtp.hear(t, `^220 `) // without a byte of ours
		p.logs(t, ` connect from `+logged(smtp)+`$`)
		smtp.say(t, "EHLO client.example.org")
		smtp.hear(t, `^250 `)
	})
	all.stayQuiet(t)
	all.each(t, "after an idle time", func(t *testing.T, smtp *dialogue) {
		smtp.say(t, "MAIL FROM:<a@example.org>")
		smtp.hear(t, `^250 `)
		// What Postfix allows to its own machine is not allowed to this client.
		smtp.say(t, "RCPT TO:<b@example.net>")
		smtp.hear(t, `^[45]54 .*Relay access denied`)
		smtp.say(t, "QUIT")
		smtp.hear(t, `^221 `)
		smtp.ends(t)
		p.logs(t, ` disconnect from `+logged(smtp)+` `)
	})
}

type postfixMaster struct{ *process }

// logs waits for a line in Postfix's log.
func (p postfixMaster) logs(t testing.TB, pattern string) {
	t.Helper()
	if _, err := p.await(&p.stdout, regexp.MustCompile(`(?m)`+pattern)); err != nil {
		t.Error(err)
	}
}

// postfix runs a Postfix that has nothing but a folder of its own, and waits for
// the addresses.
func postfix(t testing.TB, services string, addresses ...string) postfixMaster {
	t.Helper()
	postconf := peer(t, "postconf")
	owner, err := user.Lookup("postfix")
	if err != nil {
		missing(t, "the user postfix")
	}
	if os.Geteuid() != 0 {
		missing(t, "root, without which Postfix does not start,")
	}
	folder := t.TempDir()
	// Postfix's own user has to reach its folders, and a test's are root's alone.
	if err := os.Chmod(filepath.Dir(folder), 0o755); err != nil {
		t.Fatal(err)
	}
	main := fmt.Sprintf(`compatibility_level = 3.6
queue_directory = %[1]s/queue
data_directory = %[1]s/data
maillog_file = /dev/stdout
myhostname = mail.example.org
mydestination =
mynetworks = 127.0.0.0/8
smtpd_relay_restrictions = reject_unauth_destination
smtpd_peername_lookup = no
alias_maps =
local_recipient_maps =
`, folder)
	services += `anvil unix - - n - 1 anvil
postlog unix-dgram n - n - 1 postlogd
rewrite unix - - n - - trivial-rewrite
proxymap unix - - n - - proxymap
`
	uid, _ := strconv.Atoi(owner.Uid)
	for _, name := range []string{"conf", "queue/pid", "data", "queue/private", "queue/public", "queue/incoming", "queue/active"} {
		name = filepath.Join(folder, name)
		if err := os.MkdirAll(name, 0o755); err != nil {
			t.Fatal(err)
		}
		if base := filepath.Base(name); base != "conf" && base != "pid" {
			if err := os.Chown(name, uid, -1); err != nil {
				t.Fatal(err)
			}
		}
	}
	for name, text := range map[string]string{"main.cf": main, "master.cf": services} {
		if err := os.WriteFile(filepath.Join(folder, "conf", name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	conf := filepath.Join(folder, "conf")
	daemons, err := exec.Command(postconf, "-c", conf, "-h", "daemon_directory").Output()
	if err != nil {
		t.Fatalf("postconf: %v", err)
	}
	cmd := exec.Command(filepath.Join(strings.TrimSpace(string(daemons)), "master"), "-c", conf, "-d")
	// Postfix signals its whole process group when it ends: that must not be ours.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	p := postfixMaster{launch(t, cmd, "postfix")}
	t.Cleanup(func() {
		p.terminate(t)
		if err := eventually(func() error {
			if err := syscall.Kill(-cmd.Process.Pid, 0); !errors.Is(err, syscall.ESRCH) {
				return fmt.Errorf("processes of Postfix still run (%v)", err)
			}
			return nil
		}); err != nil {
			t.Error(err)
		}
	})
	p.awaitListening(t, addresses...)
	return p
}

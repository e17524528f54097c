package main_test

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
)

func TestInspIRCdBehindUs(t *testing.T) {
	t.Parallel()
	peer(t, "inspircd")
	address := loopback4(t)
	_, port, _ := net.SplitHostPort(address)
	inspircd(t, recipe(t, "IRC: InspIRCd", "inspircd.conf", "16667", port, `pingfreq="120"`, `pingfreq="1"`, `localmax="3" globalmax="3"`, `localmax="100" globalmax="100"`), address)
	names := nicknames()

	t.Run("a health check", func(t *testing.T) { probe(t, address) })
	t.Run("our largest header", func(t *testing.T) {
		ircSession(t, direct(t, address, largest(t, named)), names(), "2001:db8::7")
	})
	e := inFront(t, "IRC: InspIRCd", address)
	t.Run("sessions", func(t *testing.T) {
		eachWay(t, e, []string{"irc"}, func(t *testing.T, conn net.Conn) {
			host, _, _ := net.SplitHostPort(conn.LocalAddr().String())
			if host == "::1" {
				host = "0::1" // IRC cannot have a word that begins with a colon
			}
			irc := ircSession(t, conn, names(), host)
			// The relay asks whether the client lives; beside its answers the client is silent.
			for range 2 {
				irc.say(t, "PONG :"+irc.hear(t, `^PING :(.*)`)[1])
			}
			irc.say(t, "PING :still")
			irc.hear(t, ` PONG .*still$`)
			irc.say(t, "QUIT")
			irc.hear(t, `^ERROR :Closing link`)
		})
	})
}

// nicknames returns a function that returns a name that nobody has yet.
func nicknames() func() string {
	var n atomic.Int32
	return func() string { return "client" + string(rune('a'+n.Add(1))) }
}

// ircSession has the server speak first, registers, and asks whom the server
// takes the client for.
func ircSession(t testing.TB, conn net.Conn, name, host string) *dialogue {
	t.Helper()
	irc := newDialogue(conn)
	irc.hear(t, ` NOTICE `) // without a byte of ours
	irc.say(t, "NICK "+name, "USER "+name+" 0 * :"+name)
	if got := irc.hear(t, ` 001 .*!.*@(\S+)$`)[1]; got != host {
		t.Errorf("the welcome is for %s, want %s", got, host)
	}
	irc.say(t, "WHOIS "+name)
	if got := irc.hear(t, ` 378 .* (\S+)$`)[1]; got != host {
		t.Errorf("WHOIS says %s, want %s", got, host)
	}
	irc.hear(t, ` 318 `)
	return irc
}

// inspircd runs InspIRCd with the tags given, and waits for the addresses.
func inspircd(t testing.TB, tags string, addresses ...string) {
	t.Helper()
	folder := t.TempDir()
	config := strings.ReplaceAll(`
<server name="irc.example.org" description="test" network="Example" id="1AB">
<admin name="test" nick="test" email="test@example.org">
<dns server="127.0.0.1" timeout="1">
<files motd="FOLDER/motd">
`, "FOLDER", folder) + tags
	file := filepath.Join(folder, "inspircd.conf")
	for name, text := range map[string]string{file: config, filepath.Join(folder, "motd"): "hello\n"} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	args := []string{"--config", file, "--nofork", "--nolog", "--nopid"}
	if os.Geteuid() == 0 {
		args = append(args, "--runasroot")
	}
	p := launch(t, exec.Command(peer(t, "inspircd"), args...), "inspircd")
	p.awaitListening(t, addresses...)
}

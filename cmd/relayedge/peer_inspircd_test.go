package main_test

import (
	"crypto/tls"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestInspIRCdBehindUs(t *testing.T) {
	t.Parallel()
	peer(t, "inspircd")
	address := loopback4(t)
	_, port, _ := net.SplitHostPort(address)
	inspircd(t, recipe(t, "IRC: InspIRCd", "inspircd.conf", "16667", port, `pingfreq="120"`, `pingfreq="1"`, `localmax="3" globalmax="3"`, `localmax="100" globalmax="100"`), address)

	t.Run("a health check", func(t *testing.T) {
		probe(t, address)
		probeAndReset(t, address)
	})
	t.Run("our largest header", func(t *testing.T) {
		irc := newDialogue(direct(t, address, largest(t, named)))
		register(t, irc)
		welcomed(t, irc, named.Addr(), true)
	})
	all := everyWay(t, inFront(t, "IRC: InspIRCd", address), "irc")
	all.each(t, "the server speaks first", func(t *testing.T, irc *dialogue) { register(t, irc) })
	all.each(t, "the server knows the client", func(t *testing.T, irc *dialogue) {
		_, secure := irc.Conn.(*tls.Conn)
		welcomed(t, irc, netip.MustParseAddrPort(irc.LocalAddr().String()).Addr(), secure)
	})
	for range 2 {
		all.each(t, "the server asks an idle client whether it lives", func(t *testing.T, irc *dialogue) {
			irc.say(t, "PONG :"+irc.hear(t, `^PING :(.*)`)[1])
		})
	}
	all.each(t, "after an idle time", func(t *testing.T, irc *dialogue) {
		irc.say(t, "PING :still")
		irc.hear(t, ` PONG .*still$`)
		irc.say(t, "QUIT")
		irc.hear(t, `^ERROR :`)
		irc.ends(t)
	})
}

// register has the server speak first, and registers under a name of the
// connection's own.
func register(t testing.TB, irc *dialogue) {
	t.Helper()
	irc.hear(t, ` NOTICE `) // without a byte of ours
	irc.say(t, "NICK "+nickname(irc), "USER user 0 * :user")
}

func nickname(irc *dialogue) string {
	_, port, _ := net.SplitHostPort(irc.LocalAddr().String())
	return "c" + port
}

// welcomed expects that the server takes the client for a host, in its welcome
// and in its answer to the question who the client is, and its connection for
// secure where TLS ends at the edge.
func welcomed(t testing.TB, irc *dialogue, client netip.Addr, secure bool) {
	t.Helper()
	host := client.String()
	if strings.HasPrefix(host, ":") {
		host = "0" + host // no word of IRC begins with a colon
	}
	if got := irc.hear(t, ` 001 .*!.*@(\S+)$`)[1]; got != host {
		t.Errorf("the welcome is for %s, want %s", got, host)
	}
	irc.say(t, "WHOIS "+nickname(irc))
	if got := irc.hear(t, ` 378 .* (\S+)$`)[1]; got != host {
		t.Errorf("WHOIS says %s, want %s", got, host)
	}
	// 671 says that the connection is secure, by the header's SSL TLV; 318 ends the answer.
	if got := irc.hear(t, ` (671|318) `)[1] == "671"; got != secure {
		t.Errorf("the server takes the connection for secure: %t, want %t", got, secure)
	}
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

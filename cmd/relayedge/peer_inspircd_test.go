package main_test

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

func TestInspIRCdBehindUs(t *testing.T) {
	t.Parallel()
	peer(t, "inspircd")
	address := loopback4(t)
	_, port, _ := net.SplitHostPort(address)
	// The time between two pings is also what the server gives a client to answer one.
	inspircd(t, recipe(t, "IRC: InspIRCd", "inspircd.conf", "16667", port, `pingfreq="120"`, `pingfreq="5"`, `localmax="3" globalmax="3"`, `localmax="100" globalmax="100"`), address)

	t.Run("a health check", func(t *testing.T) {
		probe(t, address)
		probeAndReset(t, address)
	})
	t.Run("our largest header", func(t *testing.T) {
		irc := newDialogue(direct(t, address, largest(t, named)))
		answerPings(irc)
		register(t, irc)
		welcomed(t, irc, named.Addr(), true)
	})
	e := inFront(t, "IRC: InspIRCd", address)
	t.Run("the page's commands", func(t *testing.T) {
		e.showsOnConsole(t, "IRC: InspIRCd", "secure", new(transcript), "127.0.0.1:16667", address)
	})
	all := everyWay(t, e, "irc")
	pings := make(map[*dialogue]*atomic.Int32)
	for _, irc := range all {
		pings[irc] = answerPings(irc)
	}
	all.each(t, "the server speaks first", func(t *testing.T, irc *dialogue) { register(t, irc) })
	all.each(t, "the server knows the client", func(t *testing.T, irc *dialogue) {
		_, secure := irc.Conn.(*tls.Conn)
		welcomed(t, irc, netip.MustParseAddrPort(irc.LocalAddr().String()).Addr(), secure)
	})
	// The second comes from a server that has taken the answer to the first.
	all.each(t, "the server asks an idle client whether it lives", func(t *testing.T, irc *dialogue) {
		if err := eventually(func() error {
			if n := pings[irc].Load(); n < 2 {
				return fmt.Errorf("the server has asked %d times", n)
			}
			return nil
		}); err != nil {
			t.Error(err)
		}
	})
	all.each(t, "after an idle time", func(t *testing.T, irc *dialogue) {
		irc.say(t, "PING :still")
		irc.hear(t, ` PONG .*still$`)
		irc.say(t, "QUIT")
		irc.hear(t, `^ERROR :`)
		irc.ends(t)
	})
}

// answerPings has the session answer the server's pings from here on, by itself
// and at once, whatever is done with it meanwhile: it is read to its end, and
// what is no ping is kept for hear. The pings are counted.
func answerPings(irc *dialogue) *atomic.Int32 {
	from, pings, heard := irc.lines, new(atomic.Int32), new(kept)
	irc.lines = bufio.NewReader(heard)
	heard.more = sync.NewCond(&heard.mu)
	go func() {
		for err := error(nil); err == nil; {
			var line string
			line, err = from.ReadString('\n')
			if token, ok := strings.CutPrefix(line, "PING "); ok && err == nil {
				pings.Add(1)
				line = ""
				_, err = io.WriteString(irc.Conn, "PONG "+token)
			}
			heard.add(line, err)
		}
	}()
	return pings
}

// kept is a stream that has been read ahead.
type kept struct {
	mu   sync.Mutex
	more *sync.Cond
	text string
	err  error // follows the text
}

func (k *kept) add(text string, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.text += text
	k.err = err
	k.more.Broadcast()
}

func (k *kept) Read(b []byte) (int, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for k.text == "" && k.err == nil {
		k.more.Wait()
	}
	if k.text == "" {
		return 0, k.err
	}
	n := copy(b, k.text)
	k.text = k.text[n:]
	return n, nil
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

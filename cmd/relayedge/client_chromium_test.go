package main_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// A browser reaches the relay through the edge: the page opens a WebSocket, says
// HELLO and gets WELCOME. The page's load is held up until it has its result, so
// that the DOM which Chromium prints at the load is the final one.
func TestChromiumReachesTheRelay(t *testing.T) {
	t.Parallel()
	program := peer(t, "chromium", "chromium-browser", "google-chrome")
	e := runEdge(t, relayBehind)

	done := make(chan struct{})
	var once sync.Once
	site := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/":
			w.Header().Set("Content-Type", "text/html")
			fmt.Fprintf(w, `<!DOCTYPE html><body><pre id="seen">nothing</pre><script>
const show = text => { document.getElementById("seen").textContent = text; fetch("/done"); };
const ws = new WebSocket("wss://%s/relay", "relaycore.v1");
ws.binaryType = "arraybuffer";
ws.onopen = () => ws.send(new Uint8Array([1, 0, 1]));
ws.onmessage = e => show("frame " + new Uint8Array(e.data)[0].toString(16) + " of " + e.data.byteLength + " bytes over " + ws.protocol + "," + ws.extensions + ".");
ws.onclose = e => show("closed with " + e.code);
</script><script src="/held"></script>`, e.listeners["public"])
		case "/done":
			once.Do(func() { close(done) })
		case "/held":
			select {
			case <-done:
			case <-r.Context().Done():
			case <-time.After(patience):
			}
			w.Header().Set("Content-Type", "text/javascript")
		default:
			http.NotFound(w, r)
		}
	}))
	defer site.Close()

	profile, err := os.MkdirTemp("", "relayedge-chromium-")
	if err != nil {
		t.Fatal(err)
	}
	// A child of the browser may still write as it dies; that is no fault of ours.
	defer os.RemoveAll(profile)
	ctx, cancel := context.WithTimeout(t.Context(), 3*patience)
	defer cancel()
	browser := exec.CommandContext(ctx, program,
		"--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-dev-shm-usage",
		"--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync",
		"--disable-breakpad", "--no-proxy-server", "--user-data-dir="+profile,
		"--ignore-certificate-errors", "--dump-dom", site.URL+"/")
	browser.Env = append(os.Environ(), "HOME="+profile, "XDG_CONFIG_HOME="+profile, "XDG_CACHE_HOME="+profile)
	// It has children of its own; they go with it.
	browser.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	browser.Cancel = func() error { return syscall.Kill(-browser.Process.Pid, syscall.SIGKILL) }
	browser.WaitDelay = time.Second
	var complaints strings.Builder
	browser.Stderr = &complaints
	dom, err := browser.Output()
	// The same children may hold the output for a while after the browser's own end.
	if err != nil && !errors.Is(err, exec.ErrWaitDelay) {
		t.Fatalf("%v\n%s\n%s", err, dom, complaints.String())
	}
	if want := `<pre id="seen">frame 81 of 76 bytes over relaycore.v1,.</pre>`; !strings.Contains(string(dom), want) {
		t.Errorf("the page does not show %s:\n%s\n%s", want, dom, complaints.String())
	}
	e.shows(t, `relayedge_connections_total 1`, `relayedge_connections{listener="public"} 0`)
}

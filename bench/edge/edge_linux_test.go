package main

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"relayedge/internal/proxyheader"
)

// The helpers are this program; in a test, that is the test.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && helpers[os.Args[1]] != nil {
		if err := command(os.Args[1:]); err != nil {
			os.Stderr.WriteString(err.Error() + "\n")
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Setenv("GORACE", "atexit_sleep_ms=0") // helpers end a second sooner each
	os.Exit(m.Run())
}

// Runs so small that their figures mean nothing: the peers that this system has, to
// see that their configurations do what they are meant to, and all that is measured
// of ours, beside the naive proxy.
func TestSmoke(t *testing.T) {
	if testing.Short() {
		t.Skip("builds and runs the programs")
	}
	folder := t.TempDir()
	if err := errors.Join(build(folder, raceEnabled), certify(folder)); err != nil {
		t.Fatal(err)
	}
	var there []string
	for _, name := range judged {
		p, err := peerNamed(name)
		if err != nil {
			t.Fatal(err)
		}
		switch {
		case p.there("/"):
			there = append(there, name)
		case os.Getenv("RELAYEDGE_REQUIRE_PEERS") == "1":
			t.Errorf("%s is missing, and RELAYEDGE_REQUIRE_PEERS=1 asks for it", name)
		default:
			t.Logf("%s is not installed", name)
		}
	}
	for _, c := range []struct {
		name  string
		peers []string
		ops   []string
	}{
		{"judged", there, []string{"handshake", "refusal"}},
		{"naive", []string{"naive"}, []string{"resumed", "echo64", "refusal", "download", "upload", "fairness", "idle", "silent", "half", "refused"}},
	} {
		if len(c.peers) > 0 {
			t.Run(c.name, func(t *testing.T) { smoke(t, folder, c.peers, c.ops) })
		}
	}
}

func smoke(t *testing.T, folder string, with, ops []string) {
	file := filepath.Join(t.TempDir(), "run.json")
	o, err := parseOptions([]string{"-rounds", "1", "-engine", "stream", "-scale", "0.001", "-peers", strings.Join(with, ","),
		"-ops", strings.Join(ops, ","), "-folder", folder, "-out", file}, operationNames(), "")
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := o.run(t.Context(), "host", full, &out); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	r, err := read(file)
	if err != nil {
		t.Fatal(err)
	}
	expected := slices.Clone(ops)
	for at, rows := range map[string][]string{"fairness": {"fair_alone", "fair_beside"}, "idle": {"idle", "idle_cpu", "burst"}} {
		if i := slices.Index(expected, at); i >= 0 {
			expected = slices.Replace(expected, i, i+1, rows...)
		}
	}
	figures := 0
	for _, name := range expected {
		row, known := rowNamed(name)
		if !known {
			t.Fatalf("there is no row %s", name)
		}
		for _, proxy := range append([]string{ours}, with...) {
			p, err := peerNamed(proxy)
			if err != nil {
				t.Fatal(err)
			}
			got := r.values(name, proxy)
			if proxy != ours && (slices.Contains(holdings[1:], name) || p.cannot[name] != "") {
				continue // checked by the sum
			}
			if figures++; len(got) != 1 || row.compared() && name != "idle" && got[0] <= 0 {
				t.Errorf("%s of %s: %v", name, proxy, got)
			}
			if line := "RATIO op=" + name + " peer=" + proxy + " median="; proxy != ours && row.compared() && name != "idle" && !strings.Contains(out.String(), line) {
				t.Errorf("%q is missing in\n%s", line, out.String())
			}
		}
	}
	if len(r.Figures) != figures {
		t.Errorf("there are %d figures, not %d", len(r.Figures), figures)
	}
	for _, proxy := range with {
		line := "LEFT OUT op=refusal peer=" + proxy + ": " + noCap
		if p, _ := peerNamed(proxy); strings.Contains(out.String(), line) != (p.cannot["refusal"] != "") {
			t.Errorf("whether %s refuses is not as it was said:\n%s", proxy, out.String())
		}
	}
}

// started starts a backend and returns its address.
func started(t *testing.T) string {
	t.Helper()
	stdin, end := io.Pipe()
	said, out := io.Pipe()
	done := make(chan error, 1)
	go func() { done <- serveBackend(stdin, out) }()
	t.Cleanup(func() {
		end.Close()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	line, err := bufio.NewReader(said).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(line)
}

func TestBackend(t *testing.T) {
	address := started(t)
	header := func(h proxyheader.Header) []byte {
		h.Version = 2
		b, err := proxyheader.AppendV2(nil, h, true)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	proxied := header(proxyheader.Header{Source: netip.MustParseAddrPort("192.0.2.1:5"), Destination: netip.MustParseAddrPort("192.0.2.2:443")})
	bulk := func(want byte, size uint64) []byte { return binary.BigEndian.AppendUint64([]byte{want}, size) }
	for _, c := range []struct {
		name   string
		pieces [][]byte // each sent by itself
		want   string
	}{
		{"echo, with its header", [][]byte{append(bytes.Clone(proxied), "echo"...)}, "echo"},
		{"echo, after its header", [][]byte{proxied, []byte("echo"), []byte(" and more")}, "echo and more"},
		{"version 1", [][]byte{[]byte("PROXY TCP4 192.0.2.1 192.0.2.2 5 443\r\necho")}, "echo"},
		{"a header in two pieces", [][]byte{proxied[:20], append(bytes.Clone(proxied[20:]), 'e')}, "e"},
		{"download", [][]byte{append(bytes.Clone(proxied), bulk(wantDownload, 5)...)}, "\x00\x00\x00\x00\x00"},
		{"upload", [][]byte{proxied, append(bulk(wantUpload, 6), "abc"...), []byte("def")}, "u"},
		{"a length in two pieces", [][]byte{proxied, bulk(wantUpload, 2)[:4], append(bulk(wantUpload, 2)[4:], "ab"...)}, "u"},
		{"a health check", [][]byte{header(proxyheader.Header{Local: true})}, ""},
		{"no header", [][]byte{[]byte("GET / HTTP/1.1\r\n\r\n")}, ""},
		{"another request", [][]byte{append(bytes.Clone(proxied), "x12345678"...)}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			conn, err := net.Dial("tcp", address)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			conn.SetDeadline(time.Now().Add(patience))
			for _, piece := range c.pieces {
				if _, err := conn.Write(piece); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Millisecond) // most likely pieces to the backend too; it has to be right either way
			}
			if c.want == "" {
				if n, err := conn.Read(make([]byte, 1)); n > 0 || errors.Is(err, os.ErrDeadlineExceeded) {
					t.Errorf("%d bytes, %v", n, err)
				}
				return
			}
			got := make([]byte, len(c.want))
			if _, err := io.ReadFull(conn, got); err != nil || string(got) != c.want {
				t.Errorf("%q, %v", got, err)
			}
		})
	}
}

// The kernel's clock of a process says what getrusage says of its own.
func TestCPU(t *testing.T) {
	own := func() time.Duration {
		var u syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
			t.Fatal(err)
		}
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	first, err := cpuOf(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	x := 1.0
	for used := own() + 30*time.Millisecond; own() < used; {
		x *= 1.000001
	}
	const tick = 20 * time.Millisecond
	before := own()
	got, err := cpuOf(os.Getpid())
	after := own()
	if err != nil || got < before-tick || got > after+tick || got <= first {
		t.Errorf("%v, %v; getrusage has %v and %v, before it was %v (%v)", got, err, before, after, first, x > 0)
	}
	if _, err := cpuOf(1 << 22); err == nil {
		t.Error("a process that there is not has a clock")
	}
}

func TestProcess(t *testing.T) {
	p, err := start("/bin/sh", []string{"-c", "echo here; sleep 300 & sleep 300; true"}, "/", filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer p.stop()
	var pids []int
	for deadline := time.Now().Add(patience); len(pids) < 3; time.Sleep(5 * time.Millisecond) {
		if pids, err = p.tree(); err != nil || time.Now().After(deadline) {
			t.Fatalf("its tree is %v, %v", pids, err)
		}
	}
	if pss, rss, err := p.memory(); err != nil || pss < 4096 || rss < pss {
		t.Errorf("memory is %v, %v, %v", pss, rss, err)
	}
	if used, err := p.cpu(); err != nil || used <= 0 {
		t.Errorf("CPU time is %v, %v", used, err)
	}
	if said := p.said(); said != "here" {
		t.Errorf("it has said %q", said)
	}
	p.stop()
	p.stop()
	<-p.gone
	for _, pid := range pids {
		for deadline := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
			stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
			if err != nil || bytes.Contains(stat, []byte(") Z ")) {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("process %d goes on: %s", pid, stat)
			}
		}
	}
	if _, err := start("/no/such/program", nil, "/", filepath.Join(t.TempDir(), "log")); err == nil {
		t.Error("a program that there is not was started")
	}
}

func TestHello(t *testing.T) {
	folder := t.TempDir()
	if err := certify(folder); err != nil {
		t.Fatal(err)
	}
	c, err := newClients("127.0.0.1:1", filepath.Join(folder, "certificate.pem"))
	if err != nil {
		t.Fatal(err)
	}
	const handshake = 22
	if b := c.hello(); len(b) < 5 || b[0] != handshake || int(binary.BigEndian.Uint16(b[3:])) != len(b)-5 {
		t.Errorf("% x", b)
	}
	seen := make(map[string]bool)
	for range 1000 {
		seen[c.dialer().LocalAddr.String()] = true
	}
	if len(seen) != 1000 {
		t.Errorf("1000 clients have %d addresses", len(seen))
	}
	if _, err := newClients("127.0.0.1:1", filepath.Join(folder, "key.pem")); err == nil {
		t.Error("a key is a certificate")
	}
}

// A flood that is let in is not a flood that is refused.
func TestFloodLetIn(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	answer := make(chan bool, 1)
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			if <-answer {
				c.Write([]byte("welcome"))
			}
			answer <- true
			defer c.Close()
		}
	}()
	answer <- false
	f, err := newFlooder(ln.Addr().String(), 1)
	if err != nil {
		t.Fatal(err)
	}
	defer f.leave()
	if n, err := f.flood(1, time.Minute); err == nil || !strings.Contains(err.Error(), "answered") {
		t.Errorf("%d, %v", n, err)
	}
}

func TestFloodEnds(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			c.Close()
		}
	}()
	f, err := newFlooder(ln.Addr().String(), 0)
	if err != nil {
		t.Fatal(err)
	}
	if n, err := f.flood(1000, 0); n != workers || err != nil {
		t.Errorf("%d refused in no time, %v", n, err)
	}
	if n, err := f.flood(20, time.Minute); n != 20 || err != nil {
		t.Errorf("%d refused, %v", n, err)
	}
	for deadline := time.Now().Add(patience); ; { // it looks for a moment only
		f, err := newFlooder(ln.Addr().String(), 1)
		if err != nil {
			break
		}
		if f.leave(); time.Now().After(deadline) {
			t.Fatal("one that may have none has one")
		}
	}
}

func TestEach(t *testing.T) {
	wrong := errors.New("wrong")
	var done [100]bool
	if err := each(100, func(_, i int) error { done[i] = true; return nil }); err != nil || slices.Contains(done[:], false) {
		t.Errorf("%v, %v", done, err)
	}
	if err := each(100, func(_, i int) error {
		if i == 50 {
			return wrong
		}
		return nil
	}); err != wrong {
		t.Errorf("%v", err)
	}
}

func TestPercentile(t *testing.T) {
	var took []time.Duration
	for i := range 200 {
		took = append(took, time.Duration(199-i))
	}
	if d, err := percentile(took, 0.99); err != nil || d != 198 {
		t.Errorf("%d, %v", d, err)
	}
	if d, err := percentile(took[:1], 1); err != nil || d != 0 {
		t.Errorf("%d, %v", d, err)
	}
	if _, err := percentile(nil, 0.5); err == nil {
		t.Error("of nothing there is a percentile")
	}
}

func TestScaled(t *testing.T) {
	if got := full.scaled(1); got != full {
		t.Errorf("%+v", got)
	}
	small := full.scaled(0.0001)
	if small.handshakes != workers || small.bulk != 1<<20 || small.period != 100*time.Millisecond || small.held != workers {
		t.Errorf("%+v", small)
	}
}

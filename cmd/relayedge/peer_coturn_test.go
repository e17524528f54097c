package main_test

import (
	"crypto/rand"
	endian "encoding/binary"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestCoturnBehindUs(t *testing.T) {
	t.Parallel()
	peer(t, "turnserver")
	address := loopback4(t)
	_, port, _ := net.SplitHostPort(address)
	server := coturn(t, recipe(t, "coturn", "turnserver.conf", "5555", port), address)

	t.Run("a health check", func(t *testing.T) {
		probe(t, address)
		probeAndReset(t, address)
	})
	t.Run("our largest header", func(t *testing.T) {
		mapped(t, newDialogue(direct(t, address, largest(t, named))), named)
	})
	e := inFront(t, "coturn", address)
	t.Run("the page's commands", func(t *testing.T) {
		e.showsOnConsole(t, "coturn", "secure", &server.stdout, "127.0.0.1:5555", address)
	})
	ask := func(t *testing.T, d *dialogue) {
		mapped(t, d, netip.MustParseAddrPort(d.LocalAddr().String()))
	}
	all := everyWay(t, e, "stun.turn")
	all.each(t, "at once", ask)
	all.stayQuiet(t)
	all.each(t, "after an idle time", ask)
}

const stunCookie = 0x2112a442

// mapped asks the server for the client's address with a Binding request (RFC
// 8489), and holds the XOR-MAPPED-ADDRESS of the answer against it.
func mapped(t testing.TB, d *dialogue, client netip.AddrPort) {
	t.Helper()
	request := endian.BigEndian.AppendUint32([]byte{0, 1, 0, 0}, stunCookie)
	id := make([]byte, 12)
	rand.Read(id)
	if _, err := d.Write(append(request, id...)); err != nil {
		t.Fatal(err)
	}
	head := make([]byte, 20)
	if _, err := io.ReadFull(d.lines, head); err != nil {
		t.Fatal(err)
	}
	if kind := endian.BigEndian.Uint16(head); kind != 0x0101 || string(head[8:]) != string(id) {
		t.Fatalf("the answer to a Binding request begins with %x", head)
	}
	attributes := make([]byte, endian.BigEndian.Uint16(head[2:]))
	if _, err := io.ReadFull(d.lines, attributes); err != nil {
		t.Fatal(err)
	}
	got, err := xorMappedAddress(attributes, head[4:])
	if err != nil || got != client {
		t.Errorf("the server takes the client for %s (%v), want %s", got, err, client)
	}
}

// xorMappedAddress finds the attribute 0x0020 (RFC 8489, 14.2); mask is the
// cookie and the transaction's id.
func xorMappedAddress(attributes, mask []byte) (netip.AddrPort, error) {
	for len(attributes) >= 4 {
		kind, size := endian.BigEndian.Uint16(attributes), int(endian.BigEndian.Uint16(attributes[2:]))
		padded := 4 + (size+3)&^3
		if padded > len(attributes) {
			break
		}
		if value := attributes[4 : 4+size]; kind == 0x0020 && (size == 8 || size == 20) {
			port := endian.BigEndian.Uint16(value[2:]) ^ uint16(stunCookie>>16)
			ip := append([]byte(nil), value[4:]...)
			for i := range ip {
				ip[i] ^= mask[i]
			}
			addr, _ := netip.AddrFromSlice(ip)
			return netip.AddrPortFrom(addr, port), nil
		}
		attributes = attributes[padded:]
	}
	return netip.AddrPort{}, fmt.Errorf("no XOR-MAPPED-ADDRESS")
}

// coturn runs a TURN server with the lines given, and waits for the addresses.
func coturn(t testing.TB, lines string, addresses ...string) *process {
	t.Helper()
	folder := t.TempDir()
	config := lines + strings.ReplaceAll(`no-udp
no-cli
verbose
log-file=stdout
pidfile=FOLDER/pid
userdb=FOLDER/db
realm=example.org
`, "FOLDER", folder)
	file := filepath.Join(folder, "turnserver.conf")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	p := launch(t, exec.Command(peer(t, "turnserver"), "-c", file), "coturn")
	p.awaitListening(t, addresses...)
	return p
}

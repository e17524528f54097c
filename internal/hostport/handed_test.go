package hostport

import (
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// handed is a socket as the process gets it: a descriptor with a name.
func handed(t *testing.T, ln interface{ File() (*os.File, error) }, name string) *os.File {
	t.Helper()
	f, err := ln.File()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	fd, err := syscall.Dup(int(f.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	return os.NewFile(uintptr(fd), name)
}

func listenTCP(t *testing.T) *net.TCPListener {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	return ln.(*net.TCPListener)
}

func TestHandedOver(t *testing.T) {
	public := listenTCP(t)
	local, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer local.Close()
	datagrams, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer datagrams.Close()
	client, err := net.Dial("tcp", public.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	null, err := syscall.Open(os.DevNull, syscall.O_RDONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	plain := os.NewFile(uintptr(null), "plain")
	h := newHandover([]*os.File{
		handed(t, public, "public"), handed(t, local.(*net.UnixListener), "local"),
		handed(t, listenTCP(t), "twice"), handed(t, listenTCP(t), "twice"),
		handed(t, datagrams.(*net.UDPConn), "datagrams"), handed(t, client.(*net.TCPConn), "connection"),
		plain, handed(t, listenTCP(t), "spare"),
	})
	for _, tt := range []struct{ name, says string }{
		{"public", ""},
		{"local", ""},
		{"public", "it was taken before"},
		{"publik", "there are connection, datagrams, local, plain, public, spare, twice"},
		{"twice", "2 sockets of this name"},
		{"datagrams", "no stream socket"},
		{"connection", "does not listen"},
		{"plain", "it is no socket"},
	} {
		ln, err := h.listen(tt.name)
		if tt.says != "" {
			if err == nil || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("%s: %v; want %q", tt.name, err, tt.says)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		defer ln.Close()
		c, err := net.Dial(ln.Addr().Network(), ln.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		taken, err := ln.Accept()
		for err == nil && tt.name == "public" && taken.RemoteAddr().String() != c.LocalAddr().String() {
			taken, err = ln.Accept() // the client of above
		}
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
	if got, want := h.unclaimed(), []string{"connection", "datagrams", "plain", "spare", "twice"}; !slices.Equal(got, want) {
		t.Errorf("unclaimed: %q, want %q", got, want)
	}
	if got := h.unclaimed(); len(got) != 0 {
		t.Errorf("unclaimed once more: %q", got)
	}
}

func TestNothingHandedOver(t *testing.T) {
	if _, err := mustParse(t, "fd:public").Listen(); err == nil || !strings.Contains(err.Error(), "cannot listen on fd:public: no socket was handed over") {
		t.Errorf("%v", err)
	}
	if got := Unclaimed(); len(got) != 0 {
		t.Errorf("unclaimed: %q", got)
	}
}

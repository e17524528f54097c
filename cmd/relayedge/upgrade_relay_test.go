package main_test

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"relayedge/relaycore/client"
)

// The relay in the process is followed too: its sessions hear 1001, what waits in the
// mailbox file is there in the next process, and who comes meanwhile only waits. If
// the next process is killed, one more takes its place.
func TestUpgradeWithRelay(t *testing.T) {
	t.Parallel()
	key := make([]byte, 32)
	rand.Read(key)
	file := filepath.Join(t.TempDir(), "mailbox.key")
	if err := os.WriteFile(file, []byte(hex.EncodeToString(key)+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	other, err := serve("127.0.0.1:0", echo)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(other.close)
	s := runSucceeded(t, `
listeners: [{name: public, bind: "127.0.0.1:0"}, {name: plain, bind: "127.0.0.1:0", tls: none, upstream: other}]
upstreams: {relay: {addresses: ["unix:relay.sock"]}, other: {addresses: ["`+other.Addr().String()+`"], client_address: none}}
certificates: {self_issued: [localhost]}
relay: {in_process: true, bind: "unix:relay.sock", drain_secs: 2, limits: {identification_timeout_secs: 300}, offline_queue: {file: mailbox, key_file: "`+file+`"}}
`)
	address := s.listeners["public"]
	from, to := mailOf(t, "https://"+address)[0], mailOf(t, "https://"+address)[0]
	ctx, cancel := context.WithTimeout(t.Context(), 4*patience)
	defer cancel()
	session := func() *client.Session {
		t.Helper()
		c, err := client.Dial(ctx, "wss://"+address+"/relay", client.Options{TLS: &tls.Config{InsecureSkipVerify: true}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	open, kept := session(), s.enters("127.0.0.2", "plain", "")
	if err := to.Publish(ctx, nil); err != nil {
		t.Fatal(err)
	}
	receipt, err := from.Send(ctx, client.Letter{Recipient: to.Identity(), Body: []byte("hello")})
	if err != nil {
		t.Fatal(err)
	}
	s.upgrade()
	another := session() // which waits until the older process has closed the mailbox
	if _, err := open.Receive(ctx); err == nil || !strings.Contains(err.Error(), "StatusGoingAway") {
		t.Errorf("the session ends with %v, want StatusGoingAway", err)
	}
	fetched := func() {
		t.Helper()
		if err := eventually(func() error {
			page, err := to.Fetch(ctx, "")
			if err == nil && (len(page.Messages) != 1 || page.Messages[0].ID != receipt.ID) {
				t.Fatalf("the mailbox holds %+v", page)
			}
			return err
		}); err != nil {
			t.Error(err)
		}
	}
	fetched()

	// The first process serves what else it has, and so can take over again.
	if err := carries(kept); err != nil {
		t.Fatal(err)
	}
	another.Close()
	s.kill(s.newest())
	if err := eventually(func() error {
		started := s.started()
		if len(started) < 2 {
			return errors.New("no further process is started")
		}
		s.pids = append(s.pids, started[1])
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	fetched()
	if err := carries(kept); err != nil {
		t.Error(err)
	}
}

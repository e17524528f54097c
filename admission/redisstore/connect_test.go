package redisstore

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net"
	"strings"
	"testing"
	"time"

	"relayedge/admission"
	"relayedge/internal/testredis"
)

// worksAs opens a store with the URL, and has it make decisions of each kind.
func worksAs(t *testing.T, cfg Config) *Store {
	t.Helper()
	store := openTest(t, cfg, serverClock)
	w := store.Windows(RequestLimits, "test", 2, time.Minute, refuseAll{})
	m := store.Messages(admission.DefaultMessageLimits(), admission.MessageLengths{}, refuseAll{})
	for n := range 20 { // keys of several slots
		for _, d := range []admission.Decision{
			w.Take(t.Context(), keyOf(n), time.Now()), m.Peek(t.Context(), keyOf(n), time.Now()),
			m.Take(t.Context(), keyOf(n), time.Now()), m.Read(t.Context(), keyOf(n), time.Now()),
		} {
			if !d.Allowed {
				t.Fatalf("%+v, want it allowed", d)
			}
		}
	}
	return store
}

func TestUnixSocket(t *testing.T) {
	server := testredis.Start(t)
	worksAs(t, Config{URL: URL("unix://" + server.Socket + "?db=3")})
	if keys := server.Ask("INFO", "keyspace").(string); !strings.Contains(keys, "db3:") {
		t.Errorf("the keys are not in database 3: %s", keys)
	}
}

func TestPasswords(t *testing.T) {
	const password = "p/w@:%?#é-SECRET"
	escaped := "p%2Fw%40%3A%25%3F%23%C3%A9-SECRET"
	server := testredis.Start(t)
	server.Ask("ACL", "SETUSER", "edge", "on", ">"+password, "~*", "+@all")
	server.Ask("CONFIG", "SET", "requirepass", "of-the-default-user")
	url := "redis://edge:" + escaped + "@" + server.Addr + "/2"
	worksAs(t, Config{URL: URL(url)})
	worksAs(t, Config{URLFile: writeFile(t, "url", url+"\n", 0o600)})
	worksAs(t, Config{URL: URL("redis://:of-the-default-user@" + server.Addr)})

	store, log := openLogged(t, Config{URL: URL("redis://edge:wrong-SECRET@" + server.Addr)})
	if !store.Away() || log.count(saysAway) != 1 || !strings.Contains(log.String(), "WRONGPASS") {
		t.Errorf("with a wrong password away is %v, the log says\n%s", store.Away(), log)
	}
	if strings.Contains(log.String(), "SECRET") {
		t.Errorf("the log tells the password:\n%s", log)
	}
}

func TestTLS(t *testing.T) {
	certificate, key := selfSigned(t)
	server := testredis.StartTLS(t, certificate, key, "--requirepass", "x")
	url := URL("rediss://:x@" + server.Addr)
	worksAs(t, Config{URL: url, CAFile: certificate})

	await(t, "the store is away for its certificate, without the CA", func() bool {
		// A slow machine can be late with connecting before it comes to that.
		store, log := openLogged(t, Config{URL: url})
		defer store.Close()
		return store.Away() && strings.Contains(log.String(), "certificate")
	})
}

// selfSigned makes a certificate of 127.0.0.1.
func selfSigned(t *testing.T) (certificateFile, keyFile string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	certificate, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	text := func(kind string, der []byte) string {
		return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
	}
	return writeFile(t, "certificate.pem", text("CERTIFICATE", certificate), 0o600), writeFile(t, "key.pem", text("PRIVATE KEY", der), 0o600)
}

// The master dies, a replica takes over, and the store follows by itself. What
// was counted and had reached the replica still counts.
func TestSentinelFailover(t *testing.T) {
	master := testredis.Start(t)
	replica := testredis.StartReplica(t, master)
	sentinel := testredis.StartSentinel(t, "limits", master, 1)
	store, log := openLogged(t, Config{URL: URL("redis+sentinel://" + sentinel.Addr + "/limits")})
	const limit = 1_000_000
	local := newLocal(limit / 2)
	w := store.Windows(RequestLimits, "test", limit, time.Hour, local)
	take := func() admission.Decision {
		d := w.Take(t.Context(), keyOf(1), time.Now())
		if !d.Allowed {
			t.Fatalf("%+v, want it allowed", d)
		}
		return d
	}
	for range 100 {
		take()
	}
	counted := limit - take().Remaining
	replica.Await("it has the count", func() bool {
		held, _ := replica.Ask("GET", "relayedge:test:"+keyOf(1).String()).(string)
		return strings.HasPrefix(held, whole(counted)+" ")
	})
	master.Stop()
	await(t, "the store is away", func() bool { take(); return store.Away() })
	await(t, "the replica decides", func() bool { return take().Limit == limit })
	if now := limit - take().Remaining; now <= counted {
		t.Errorf("after the failover %d are counted, before it were %d", now, counted)
	}
	if log.count(saysAway) > 3 || log.count(saysAway) != log.count(saysBack) {
		t.Errorf("the log says\n%s", log)
	}
}

// In a cluster windows are spread over the nodes, and message limits are on one.
func TestCluster(t *testing.T) {
	nodes := testredis.StartCluster(t, 3)
	worksAs(t, Config{URL: URL("redis+cluster://" + nodes[1].Addr + "," + nodes[0].Addr)})
	windows, messages := 0, 0
	for _, n := range nodes {
		w, m := 0, 0
		for _, key := range n.Keys() {
			if strings.Contains(key, messagesTag) {
				m++
			} else {
				w++
			}
		}
		if w > 0 {
			windows++
		}
		if m > 0 {
			messages++
		}
	}
	if windows != 3 || messages != 1 {
		t.Errorf("windows are on %d nodes of 3, message limits on %d", windows, messages)
	}
}

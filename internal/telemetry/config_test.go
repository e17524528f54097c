package telemetry

import (
	"errors"
	"reflect"
	"strings"
	"syscall"
	"testing"

	"relayedge/internal/keyfault"
)

func TestConfigValidate(t *testing.T) {
	good := Config{Enabled: true, BindAddr: "127.0.0.1:9090", Namespace: "relayedge"}
	for _, row := range []struct {
		name   string
		change func(c *Config)
		key    string // of the fault, or empty
		text   string
	}{
		{"default", func(c *Config) {}, "", ""},
		{"IPv6 loopback", func(c *Config) { c.BindAddr = "[::1]:9090" }, "", ""},
		{"far loopback", func(c *Config) { c.BindAddr = "127.9.9.9:1" }, "", ""},
		{"mapped loopback", func(c *Config) { c.BindAddr = "[::ffff:127.0.0.1]:9090" }, "", ""},
		{"localhost", func(c *Config) { c.BindAddr = "localhost:9090" }, "", ""},
		{"any port", func(c *Config) { c.BindAddr = "127.0.0.1:0" }, "", ""},
		{"last port", func(c *Config) { c.BindAddr = "127.0.0.1:65535" }, "", ""},
		{"namespace of another's dashboards", func(c *Config) { c.Namespace = "_Rchat_2" }, "", ""},

		{"all IPv4", func(c *Config) { c.BindAddr = "0.0.0.0:9090" }, "bind_addr", "allow_public: true"},
		{"all IPv6", func(c *Config) { c.BindAddr = "[::]:9090" }, "bind_addr", "allow_public: true"},
		{"no host", func(c *Config) { c.BindAddr = ":9090" }, "bind_addr", "allow_public: true"},
		{"private", func(c *Config) { c.BindAddr = "10.0.0.1:9090" }, "bind_addr", "allow_public: true"},
		{"mapped public", func(c *Config) { c.BindAddr = "[::ffff:192.0.2.1]:9090" }, "bind_addr", "allow_public: true"},
		{"public, allowed", func(c *Config) { c.BindAddr, c.AllowPublic = "0.0.0.0:9090", true }, "", ""},
		{"no host, allowed", func(c *Config) { c.BindAddr, c.AllowPublic = ":9090", true }, "", ""},
		{"public, disabled", func(c *Config) { c.BindAddr, c.Enabled = "0.0.0.0:9090", false }, "", ""},

		{"empty", func(c *Config) { c.BindAddr = "" }, "bind_addr", "write host:port"},
		{"no port", func(c *Config) { c.BindAddr = "127.0.0.1" }, "bind_addr", "write host:port"},
		{"bare IPv6", func(c *Config) { c.BindAddr = "::1:9090" }, "bind_addr", "write host:port"},
		{"broken though disabled", func(c *Config) { c.BindAddr, c.Enabled = "9090", false }, "bind_addr", "write host:port"},
		{"empty port", func(c *Config) { c.BindAddr = "127.0.0.1:" }, "bind_addr", "0 to 65535"},
		{"port too large", func(c *Config) { c.BindAddr = "127.0.0.1:65536" }, "bind_addr", "0 to 65535"},
		{"named port", func(c *Config) { c.BindAddr = "127.0.0.1:http" }, "bind_addr", "0 to 65535"},
		{"signed port", func(c *Config) { c.BindAddr = "127.0.0.1:+9090" }, "bind_addr", "0 to 65535"},
		{"padded port", func(c *Config) { c.BindAddr = "127.0.0.1:09090" }, "bind_addr", "0 to 65535"},
		{"a name", func(c *Config) { c.BindAddr = "metrics.example.org:9090" }, "bind_addr", "IP address"},
		{"a name, allowed", func(c *Config) { c.BindAddr, c.AllowPublic = "metrics.example.org:9090", true }, "bind_addr", "IP address"},

		{"empty namespace", func(c *Config) { c.Namespace = "" }, "namespace", "begin a metric name"},
		{"digit first", func(c *Config) { c.Namespace = "1relay" }, "namespace", "begin a metric name"},
		{"dash", func(c *Config) { c.Namespace = "relay-edge" }, "namespace", "begin a metric name"},
		{"colon", func(c *Config) { c.Namespace = "relay:edge" }, "namespace", "begin a metric name"},
		{"not ASCII", func(c *Config) { c.Namespace = "rélay" }, "namespace", "begin a metric name"},
	} {
		t.Run(row.name, func(t *testing.T) {
			c := good
			row.change(&c)
			err := c.Validate()
			if row.key == "" {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			keyed, ok := errors.AsType[interface {
				error
				PolicyKey() string
			}](err)
			if !ok || keyed.PolicyKey() != row.key || !strings.Contains(err.Error(), row.text) {
				t.Fatalf("%v; want %q at %s", err, row.text, row.key)
			}
		})
	}
}

func TestConfigReportsEveryFault(t *testing.T) {
	err := Config{Enabled: true, BindAddr: "9090", Namespace: "a-b"}.Validate()
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		t.Fatalf("%v is not several errors", err)
	}
	var keys []string
	for _, e := range joined.Unwrap() {
		keys = append(keys, e.(*keyfault.Fault).Key)
	}
	if !reflect.DeepEqual(keys, []string{"bind_addr", "namespace"}) {
		t.Fatal(keys)
	}
}

// What Validate takes as loopback without asking is loopback once bound.
func TestListen(t *testing.T) {
	ln, err := Listen(Config{BindAddr: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()

	t.Run("in use", func(t *testing.T) {
		addr := ln.Addr().String()
		_, err := Listen(Config{BindAddr: addr})
		// spec/003: If it cannot bind, the relay logs "Metrics endpoint failed on ..." and keeps relaying.
		if err == nil || err.Error() != "Metrics endpoint failed on "+addr+": address already in use" || !errors.Is(err, syscall.EADDRINUSE) {
			t.Fatal(err)
		}
	})
	t.Run("not an address", func(t *testing.T) {
		_, err := Listen(Config{BindAddr: "127.0.0.1"})
		if err == nil || !strings.HasPrefix(err.Error(), "Metrics endpoint failed on 127.0.0.1: ") || !strings.Contains(err.Error(), "write host:port") {
			t.Fatal(err)
		}
	})
	t.Run("not this machine's", func(t *testing.T) {
		_, err := Listen(Config{BindAddr: "192.0.2.1:0", AllowPublic: true})
		if !errors.Is(err, syscall.EADDRNOTAVAIL) {
			t.Fatal(err)
		}
	})
	t.Run("public though not allowed", func(t *testing.T) {
		_, err := Listen(Config{BindAddr: "0.0.0.0:0"})
		if !errors.Is(err, errNotLoopback) {
			t.Fatal(err)
		}
		public, err := Listen(Config{BindAddr: "0.0.0.0:0", AllowPublic: true})
		if err != nil {
			t.Fatal(err)
		}
		_ = public.Close()
	})
}

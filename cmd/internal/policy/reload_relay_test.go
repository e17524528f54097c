package policy

import (
	"log/slog"
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"relayedge/relaycore"
)

// The relay itself takes in a reload what the table says, and refuses the rest.
func TestEffectsAreTheRelays(t *testing.T) {
	relay, err := relaycore.NewServer(relaycore.DefaultConfig(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer relay.Close()
	keys := 0
	var walk func(section reflect.Type, key string, index []int)
	walk = func(section reflect.Type, key string, index []int) {
		for f := range section.Fields() {
			key, index := key+"."+f.Tag.Get("key"), append(index[:len(index):len(index)], f.Index...)
			if f.Type.Kind() == reflect.Struct {
				walk(f.Type, key, index)
				continue
			}
			keys++
			if strings.HasPrefix(key, "relay.metrics.") || strings.HasPrefix(key, "relay.control.") {
				continue // the command's, which the relay does not look at
			}
			cfg := relaycore.DefaultConfig()
			switch v := reflect.ValueOf(&cfg).Elem().FieldByIndex(index); v.Interface().(type) {
			case bool:
				v.SetBool(!v.Bool())
			case int:
				v.SetInt(v.Int() - 1) // no default is the least that is allowed
			case string:
				v.SetString("127.0.0.1:7")
			case []netip.Prefix:
				v.Set(v.Slice(0, 1))
			case []string:
				v.Set(reflect.ValueOf([]string{"push.example.org"}))
			default:
				t.Fatalf("%s is a %v: say how it is changed", key, f.Type)
			}
			switch key { // each needs the other
			case "relay.offline_queue.file":
				cfg.OfflineQueue.KeyFile = "key"
			case "relay.offline_queue.key_file":
				cfg.OfflineQueue.File = "file"
			case "relay.push.enabled":
				cfg.Push.AllowedHosts = []string{"push.example.org"}
			}
			if err := cfg.Validate(); err != nil {
				t.Fatalf("%s: %v", key, err)
			}
			if _, err := relay.Prepare(cfg); (err == nil) != (Relay.Effect(key) == Live) {
				t.Errorf("%s: the table says %v, the relay %v", key, Relay.Effect(key), err)
			}
		}
	}
	walk(reflect.TypeFor[relaycore.Config](), "relay", nil)
	if keys < 30 {
		t.Errorf("%d keys were tried", keys)
	}
}

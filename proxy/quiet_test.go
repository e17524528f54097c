package proxy

import (
	"testing"
	"testing/synctest"
	"time"
)

// A session that is silent for an hour is let be where the policy allows it: both
// sides find each other again as if nothing had been.
func TestHourOfSilence(t *testing.T) {
	both(t, func(l *Limits) { l.ConnectionTimeoutSecs = 7200 }, func(t *testing.T, e *testEdge, client, relay halfCloser) {
		mustWrite(t, relay, []byte("220 ready"))
		wantRead(t, client, []byte("220 ready"))
		for range 3 {
			time.Sleep(time.Hour)
			e.wantOpen()
			mustWrite(t, client, []byte("NOOP"))
			wantRead(t, relay, []byte("NOOP"))
			mustWrite(t, relay, []byte("250 ok"))
			wantRead(t, client, []byte("250 ok"))
		}
		synctest.Wait()
		time.Sleep(2*time.Hour - time.Nanosecond)
		e.wantOpen()
		time.Sleep(time.Nanosecond)
		e.wantEnd(IdleTimeout)
	})
}

// A client that only listens is let be for as long as the relay says something
// now and then.
func TestHourOfListening(t *testing.T) {
	both(t, func(l *Limits) { l.IdleCounts = "both" }, func(t *testing.T, e *testEdge, client, relay halfCloser) {
		for range 15 {
			time.Sleep(4 * time.Minute)
			mustWrite(t, relay, []byte("PING"))
			wantRead(t, client, []byte("PING"))
		}
		e.wantOpen()
		mustWrite(t, client, []byte("PONG"))
		wantRead(t, relay, []byte("PONG"))
	})
}

// The table of docs/relays.md: which protocol's usual signs of life come often
// enough, an hour long.
func TestUsualKeepAlives(t *testing.T) {
	for _, row := range []struct {
		name   string
		every  time.Duration
		relay  string // what the relay says first
		client string // what the client says then
		secs   int    // connection_timeout_secs
		counts string // idle_counts
		lives  bool
	}{
		{"IRC: the server asks after 90 s", 90 * time.Second, "PING", "PONG", 300, "client", true},
		{"IRC: the server asks after 240 s", 240 * time.Second, "PING", "PONG", 300, "client", true},
		{"MQTT: PINGREQ every 60 s", 60 * time.Second, "", "PINGREQ", 300, "client", true},
		{"SMTP: ten minutes for the answer to DATA", 600*time.Second - time.Nanosecond, "250 ok", "NOOP", 300, "client", false},
		{"SMTP: ten minutes for the answer to DATA", 600*time.Second - time.Nanosecond, "250 ok", "NOOP", 900, "client", true},
		{"TURN: Refresh a minute before the end", 540 * time.Second, "", "Refresh", 300, "client", false},
		{"TURN: Refresh a minute before the end", 540 * time.Second, "", "Refresh", 900, "client", true},
		{"news every 240 s to one who only listens", 240 * time.Second, "news", "", 300, "client", false},
		{"news every 240 s to one who only listens", 240 * time.Second, "news", "", 300, "both", true},
	} {
		t.Run(row.name, func(t *testing.T) {
			both(t, func(l *Limits) { l.ConnectionTimeoutSecs, l.IdleCounts = row.secs, row.counts }, func(t *testing.T, e *testEdge, client, relay halfCloser) {
				// One that does not live is gone before it has had a second sign of life.
				for since := row.every; since <= time.Hour && (row.lives || since <= 2*row.every); since += row.every {
					time.Sleep(row.every)
					synctest.Wait()
					if !row.lives && e.ended(IdleTimeout) == 1 {
						return
					}
					e.wantOpen()
					if row.relay != "" {
						mustWrite(t, relay, []byte(row.relay))
						wantRead(t, client, []byte(row.relay))
					}
					if row.client != "" {
						mustWrite(t, client, []byte(row.client))
						wantRead(t, relay, []byte(row.client))
					}
				}
				if !row.lives {
					t.Error("it lives")
				}
			})
		})
	}
}

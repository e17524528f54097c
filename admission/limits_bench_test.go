package admission

import (
	"testing"
	"time"
)

// What one decision costs, with 5,000 others who are counted.
func BenchmarkDecision(b *testing.B) {
	const others = 5000
	now := time.Now()
	limits := MessageLimitsConfig{
		Sender: SenderMessageLimits{Minute: maxSenderMessages, Hour: 4000, Day: maxSenderMessages},
		Global: GlobalMessageLimits{Minute: maxGlobalMessages, Hour: maxGlobalMessages, Day: maxGlobalMessages},
	}
	refusing := limits
	refusing.Sender.Hour = 1
	messages := func(c MessageLimitsConfig) *MessageLimits {
		m := newMessageLimits(b, c)
		for k := range others {
			m.Take(b.Context(), numbered(k), now)
			m.Read(b.Context(), numbered(k), now)
		}
		return m
	}
	windows := func(limit int64) *FixedWindows {
		w := NewFixedWindows(limit, time.Hour)
		for k := range others {
			w.Take(b.Context(), numbered(k), now)
		}
		return w
	}
	open, shut := windows(1<<40), windows(1)
	send, refuse := messages(limits), messages(refusing)
	throttle := NewThrottle(1_000_000)
	credentials := NewCredentials(1, time.Hour)
	for k := range others {
		credentials.Apart(numbered(k), numbered(k), now)
	}
	ctx := b.Context()
	for _, bb := range []struct {
		name   string
		want   bool
		decide func(k Key, now time.Time) bool
	}{
		{"window", true, func(k Key, now time.Time) bool { return open.Take(ctx, k, now).Allowed }},
		{"window, refused", false, func(k Key, now time.Time) bool { return shut.Take(ctx, k, now).Allowed }},
		{"message", true, func(k Key, now time.Time) bool { return send.Take(ctx, k, now).Allowed }},
		{"message, looked at", true, func(k Key, now time.Time) bool { return send.Peek(ctx, k, now).Allowed }},
		{"message, refused", false, func(k Key, now time.Time) bool { return refuse.Take(ctx, k, now).Allowed }},
		{"throttle", true, func(k Key, now time.Time) bool {
			ok := throttle.Take(k, now).Allowed
			throttle.Return(k, now)
			return ok
		}},
		{"credential", true, func(k Key, now time.Time) bool { return credentials.Apart(k, k, now) }},
	} {
		b.Run(bb.name, func(b *testing.B) {
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				i++
				if bb.decide(numbered(i%others), now.Add(time.Duration(i))) != bb.want {
					b.Fatal("decided otherwise")
				}
			}
		})
	}
}

// BenchmarkDecisions counts what all processors decide together.
func BenchmarkDecisions(b *testing.B) {
	now := time.Now()
	w := NewFixedWindows(1<<40, time.Hour)
	m := newMessageLimits(b, MessageLimitsConfig{
		Sender: SenderMessageLimits{Minute: maxSenderMessages, Hour: maxSenderMessages, Day: maxSenderMessages},
		Global: GlobalMessageLimits{Minute: maxGlobalMessages, Hour: maxGlobalMessages, Day: maxGlobalMessages},
	})
	ctx := b.Context()
	for name, decide := range map[string]func(Key) Decision{
		"windows":  func(k Key) Decision { return w.Take(ctx, k, now) },
		"messages": func(k Key) Decision { return m.Take(ctx, k, now) },
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				for i := 0; pb.Next(); i++ {
					decide(numbered(i % 4096))
				}
			})
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "decisions/s")
		})
	}
}

// A table that is full, and newcomers that share: what an attack costs.
func BenchmarkFullWindows(b *testing.B) {
	w, now := NewFixedWindows(1, time.Hour), time.Now()
	for k := range fixedRows {
		w.Take(b.Context(), numbered(k), now)
	}
	b.ReportAllocs()
	i := fixedRows
	for b.Loop() {
		i++
		w.Take(b.Context(), numbered(i), now)
	}
}

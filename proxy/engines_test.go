package proxy

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// testedEngines are the engines that every test of the edge's behaviour runs on.
var testedEngines = allEngines()

func allEngines() []string {
	if loopsWork {
		return []string{"stream", "loop"}
	}
	return []string{"stream"}
}

// timerGrain is how late a limit may come: an event loop's timers go by the
// millisecond, and are never early.
const timerGrain = time.Millisecond

const engineMark = "engine="

// onEngines runs f once for each engine, as a subtest that bears its name.
func onEngines(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	for _, engine := range testedEngines {
		t.Run(engineMark+engine, f)
	}
}

// inBubble runs f in synthetic time, on each engine.
func inBubble(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	onEngines(t, func(t *testing.T) { synctest.Test(t, f) })
}

// engineOf is the engine that the test runs on: that of the innermost subtest
// that bears one's name, or what the system has for a test that runs on no
// engine in particular.
func engineOf(t testing.TB) string {
	for _, part := range slices.Backward(strings.Split(t.Name(), "/")) {
		if engine, found := strings.CutPrefix(part, engineMark); found {
			engine, _, _ = strings.Cut(engine, "#") // a second subtest of one name has a number behind it
			return engine
		}
	}
	return "auto"
}

// The edge that a test makes has the engine whose turn it is.
func TestEngineOfTest(t *testing.T) {
	if got := engineOf(t); got != "auto" {
		t.Errorf("outside: %s", got)
	}
	var ran []string
	for range 2 {
		onEngines(t, func(t *testing.T) {
			t.Run("inside", func(t *testing.T) { ran = append(ran, engineOf(t)) })
		})
	}
	if want := slices.Concat(testedEngines, testedEngines); !slices.Equal(ran, want) {
		t.Errorf("ran on %v, want %v", ran, want)
	}
	inBubble(t, func(t *testing.T) {
		e := newEdge(t, nil)
		if e.config.Engine != engineOf(t) || !slices.Contains(testedEngines, e.config.Engine) {
			t.Errorf("the edge has the engine %s", e.config.Engine)
		}
	})
}

// Package testbrowser is a Chromium without a window, for tests of pages. It sees
// what a page asks for and what it complains of.
package testbrowser

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

// patience is how long a step may take, and how long Eventually waits, on a machine
// that is slow and busy: only what fails waits so long.
const patience = 2 * time.Minute

// Tab is a page of a browser of its own, until the end of the test that opened it.
type Tab struct {
	t   testing.TB // that fails
	ctx context.Context

	mu         sync.Mutex
	complaints []string // guarded by mu
	asked      []string // URLs
}

// Open starts a browser. Where there is none the test is skipped, or fails with
// RELAYEDGE_REQUIRE_PEERS=1.
func Open(t testing.TB) *Tab {
	t.Helper()
	var program string
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			program = path
			break
		}
	}
	if program == "" {
		if os.Getenv("RELAYEDGE_REQUIRE_PEERS") == "1" {
			t.Fatal("chromium is missing, and RELAYEDGE_REQUIRE_PEERS=1 asks for it")
		}
		t.Skip("chromium is missing")
	}
	profile, err := os.MkdirTemp("", "relayedge-chromium-")
	if err != nil {
		t.Fatal(err)
	}
	// A child of the browser may still write as it dies; that is no fault of ours.
	t.Cleanup(func() { os.RemoveAll(profile) })
	options := append(slices.Clone(chromedp.DefaultExecAllocatorOptions[:]),
		chromedp.ExecPath(program), chromedp.NoSandbox, chromedp.DisableGPU, chromedp.UserDataDir(profile),
		chromedp.Flag("no-proxy-server", true), chromedp.Flag("disable-component-update", true), chromedp.Flag("disable-quic", true),
		chromedp.Env("HOME="+profile, "XDG_CONFIG_HOME="+profile, "XDG_CACHE_HOME="+profile),
	)
	// It outlives the test's own context, which ends before what Cleanup does.
	allocator, endAllocator := chromedp.NewExecAllocator(context.Background(), options...)
	t.Cleanup(endAllocator)
	ctx, end := chromedp.NewContext(allocator)
	t.Cleanup(end)
	tab := &Tab{t: t, ctx: ctx}
	if err := chromedp.Listen(ctx, tab.hear); err != nil {
		t.Fatalf("the browser does not start: %v", err)
	}
	tab.do(func(ctx context.Context, target *chromedp.Target) (chromedp.Void, error) {
		_, err := cdp.Call(ctx, target, network.Enable, network.EnableParams{})
		return chromedp.Void{}, err
	})
	return tab
}

// For has a part of the test fail for what goes wrong from here on, and forgets what
// was heard of pages so far.
func (b *Tab) For(t testing.TB) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.t, b.complaints, b.asked = t, nil, nil
}

func (b *Tab) hear(event any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch e := event.(type) {
	case *network.EventRequestWillBeSent:
		b.asked = append(b.asked, e.Request.URL)
	case *runtime.EventExceptionThrown:
		b.complaints = append(b.complaints, fmt.Sprintf("exception: %+v", *e.ExceptionDetails))
	case *runtime.EventConsoleAPICalled:
		b.complaints = append(b.complaints, fmt.Sprintf("console: %s", e.Type))
	case *log.EventEntryAdded:
		b.complaints = append(b.complaints, fmt.Sprintf("%s: %s %s", e.Entry.Level, e.Entry.Text, e.Entry.URL))
	}
}

func (b *Tab) do(a chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	if err := chromedp.Do(ctx, a); err != nil {
		b.t.Fatal(err)
	}
}

// Go loads a page.
func (b *Tab) Go(url string) {
	b.t.Helper()
	b.do(chromedp.Navigate(url))
}

// Eval returns what an expression is in the page, once it is.
func Eval[T any](b *Tab, expression string) T {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	value, err := chromedp.Run(ctx, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
	if err != nil {
		b.t.Fatalf("%s: %v", expression, err)
	}
	return value
}

// Eventually waits until look returns nothing, and fails with what it returned last
// when patience is over.
func (b *Tab) Eventually(look func() (wrong string)) {
	b.t.Helper()
	deadline := time.Now().Add(patience)
	for {
		wrong := look()
		if wrong == "" {
			return
		}
		if time.Now().After(deadline) {
			b.t.Fatal(wrong)
		}
		time.Sleep(10 * time.Millisecond) // the browser is what changes: there is nothing to be woken by
	}
}

// Press presses keys, as in "\t" or " ".
func (b *Tab) Press(keys string) {
	b.t.Helper()
	b.do(chromedp.KeyEvent(keys))
}

// Screen makes the page so wide and high, in a colour scheme: light or dark.
func (b *Tab) Screen(wide, high int64, scheme string) {
	b.t.Helper()
	b.do(chromedp.EmulateViewport(wide, high))
	b.do(func(ctx context.Context, target *chromedp.Target) (chromedp.Void, error) {
		_, err := cdp.Call(ctx, target, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
			Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}},
		})
		return chromedp.Void{}, err
	})
}

// Picture is the whole page as a PNG.
func (b *Tab) Picture() []byte {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	picture, err := chromedp.Run(ctx, chromedp.FullScreenshot(100))
	if err != nil {
		b.t.Fatal(err)
	}
	return picture
}

// Complaints are what the console has said: errors, refusals of the page's policy,
// requests that failed.
func (b *Tab) Complaints() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.complaints)
}

// AskedElsewhere are the URLs that were asked for and do not begin with origin.
func (b *Tab) AskedElsewhere(origin string) []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(b.asked), func(url string) bool {
		return strings.HasPrefix(url, origin+"/") || strings.HasPrefix(url, "data:,")
	})
}

// Asked is how often a URL was asked for.
func (b *Tab) Asked(url string) (n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, asked := range b.asked {
		if asked == url {
			n++
		}
	}
	return n
}

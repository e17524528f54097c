package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"relayedge/cmd/internal/service"
	"relayedge/internal/status"
	"relayedge/internal/terminal"
)

// topEvery is how often top looks.
const topEvery = time.Second

func statusCommand() *cobra.Command {
	asker := service.NewAsker(edgeProgram)
	var asJSON bool
	c := &cobra.Command{
		Use:   "status [-c FILE | --socket PATH | --address ADDR] [--json]",
		Short: "Print what the running edge is about: connections, refusals, limits, upstreams, certificates",
		Args:  service.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			var s status.Status
			if err := asker.Get(c.Context(), status.DocumentPath, &s); err != nil {
				return err
			}
			if !asJSON {
				return printLines(c.OutOrStdout(), s)
			}
			text, err := status.Document(s)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(c.OutOrStdout(), string(text))
			return err
		},
	}
	asker.Flags(c)
	c.Flags().BoolVar(&asJSON, "json", false, "print the document that docs/status.md describes")
	return c
}

func topCommand() *cobra.Command {
	asker := service.NewAsker(edgeProgram)
	c := &cobra.Command{
		Use:   "top [-c FILE | --socket PATH | --address ADDR]",
		Short: "Show what status prints, anew every second, until q or Ctrl-C",
		Args:  service.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			var first status.Status
			if err := asker.Get(c.Context(), status.DocumentPath, &first); err != nil {
				return err
			}
			if !terminal.Is(os.Stdout) || os.Getenv("TERM") == "dumb" {
				return printLines(c.OutOrStdout(), first)
			}
			return onTerminal(c.Context(), func(ctx context.Context, s *screen) error {
				return s.run(ctx, first, func(ctx context.Context) (s status.Status, err error) {
					return s, asker.Get(ctx, status.DocumentPath, &s)
				})
			})
		},
	}
	asker.Flags(c)
	return c
}

func printLines(out io.Writer, s status.Status) error {
	_, err := fmt.Fprintln(out, strings.Join(status.Lines(s, 0, 0), "\n"))
	return err
}

// onTerminal gives f the terminal of the process, and leaves it as it was however f
// ends.
func onTerminal(ctx context.Context, f func(context.Context, *screen) error) error {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	s := &screen{out: os.Stdout, size: func() (int, int, error) { return terminal.Size(os.Stdout) }}
	// Without keys, as with an input that is none, it ends by a signal.
	if restore, err := terminal.Keys(os.Stdin); err == nil {
		defer restore()
		keys := make(chan byte)
		s.keys = keys
		go readKeys(ctx, os.Stdin, keys)
	}
	resized, stopResized := terminal.Resized()
	defer stopResized()
	s.resized = resized
	return f(ctx, s)
}

// readKeys hands keys over until ctx ends or there are none any longer. A read that
// waits then is left to the end of the process.
func readKeys(ctx context.Context, in io.Reader, keys chan<- byte) {
	b := make([]byte, 1)
	for {
		if n, err := in.Read(b); n == 0 || err != nil {
			return
		}
		select {
		case keys <- b[0]:
		case <-ctx.Done():
			return
		}
	}
}

// What a terminal obeys: another screen that is gone with what was drawn on it, no
// cursor, and lines that end where the screen does.
const (
	screenBegin = "\x1b[?1049h\x1b[?25l\x1b[?7l"
	screenEnd   = "\x1b[?7h\x1b[?25h\x1b[?1049l"
	screenHome  = "\x1b[H"
	lineEnd     = "\x1b[K"
	screenRest  = "\x1b[J"
)

// screen is a terminal that is drawn on.
type screen struct {
	out     io.Writer
	size    func() (wide, high int, err error)
	keys    <-chan byte      // nil: there are none
	resized <-chan os.Signal // nil: it does not tell
}

// run draws a status, and then what ask returns, every second until a key or ctx
// ends it. An edge that does not answer is said, and asked again: it may be
// restarting.
func (s *screen) run(ctx context.Context, first status.Status, ask func(context.Context) (status.Status, error)) error {
	if _, err := io.WriteString(s.out, screenBegin); err != nil {
		return err
	}
	defer io.WriteString(s.out, screenEnd)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type answer struct {
		status status.Status
		err    error
	}
	answers := make(chan answer, 1)
	shown, trouble := first, ""
	next := time.NewTimer(topEvery)
	defer next.Stop()
	for {
		if err := s.draw(shown, trouble); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case key := <-s.keys:
			if key == 'q' || key == 'Q' || key == 3 || key == 4 { // Ctrl-C, Ctrl-D
				return nil
			}
		case <-s.resized:
		case <-next.C:
			go func() { // keys are heard while the edge does not answer
				got, err := ask(ctx)
				answers <- answer{got, err}
			}()
		case a := <-answers:
			if trouble = ""; a.err != nil {
				trouble = "no answer, these figures are of before: " + a.err.Error()
			} else {
				shown = a.status
			}
			next.Reset(topEvery)
		}
	}
}

func (s *screen) draw(st status.Status, trouble string) error {
	wide, high, err := s.size()
	if err != nil {
		return err
	}
	last := trouble
	if last == "" {
		last = "q quits"
	}
	lines := status.Lines(st, wide, max(high-1, 1))
	for len(lines) < high-1 {
		lines = append(lines, "")
	}
	if high > 1 {
		lines = append(lines, status.Line(last, wide))
	}
	var b bytes.Buffer
	b.WriteString(screenHome)
	for i, l := range lines {
		if i > 0 {
			b.WriteString("\r\n")
		}
		b.WriteString(l + lineEnd)
	}
	b.WriteString(screenRest)
	_, err = s.out.Write(b.Bytes())
	return err
}

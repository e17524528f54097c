// Package manual writes the manual page of a command line, in troff with the man
// macros, from what its commands say of themselves. One page has all of them.
package manual

import (
	"bytes"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
)

// Section is where the pages stand.
const Section = 1

// Page is what the commands do not say.
type Page struct {
	Version string      // of the program
	Files   [][2]string // path, and what it is
	SeeAlso []string
}

// Write writes the page of root and all its commands.
func Write(w io.Writer, root *cobra.Command, p Page) error {
	var b bytes.Buffer
	name := root.Name()
	fmt.Fprintf(&b, ".TH %s %d \"\" %s \"User Commands\"\n", quote(strings.ToUpper(name)), Section, quote(name+" "+p.Version))
	fmt.Fprintf(&b, ".SH NAME\n%s \\- %s\n", escape(name), escape(root.Short))
	b.WriteString(".SH SYNOPSIS\n")
	commands := shown(root)
	for i, c := range commands {
		if i > 0 {
			b.WriteString(".br\n")
		}
		b.WriteString(".B " + escape(name+" ") + escape(usage(c)) + "\n")
	}
	b.WriteString(".SH COMMANDS\n")
	for _, c := range commands {
		command(&b, c)
	}
	if len(p.Files) > 0 {
		b.WriteString(".SH FILES\n")
		for _, f := range p.Files {
			b.WriteString(".TP\n.I " + escape(f[0]) + "\n" + escape(f[1]) + "\n")
		}
	}
	b.WriteString(".SH EXIT STATUS\n0, or 1 with what is wrong on standard error.\n")
	if len(p.SeeAlso) > 0 {
		b.WriteString(".SH SEE ALSO\n" + escape(strings.Join(p.SeeAlso, ", ")) + "\n")
	}
	_, err := w.Write(b.Bytes())
	return err
}

// shown are the commands of an operator; those that cobra adds are told by --help.
func shown(root *cobra.Command) (commands []*cobra.Command) {
	for _, c := range root.Commands() {
		if c.IsAvailableCommand() && c.Name() != "completion" && c.Name() != "help" {
			commands = append(commands, c)
		}
	}
	return commands
}

// usage is the command as its Use has it.
func usage(c *cobra.Command) string {
	if c.HasAvailableLocalFlags() && !strings.Contains(c.Use, "[") {
		return c.Use + " [flags]"
	}
	return c.Use
}

func command(b *bytes.Buffer, c *cobra.Command) {
	fmt.Fprintf(b, ".SS %s\n", quote(c.Use))
	text := c.Long
	if text == "" {
		text = c.Short + "."
	}
	for i, paragraph := range strings.Split(strings.TrimSpace(text), "\n\n") {
		if i > 0 {
			b.WriteString(".PP\n")
		}
		b.WriteString(escape(paragraph) + "\n")
	}
	if c.HasAvailableLocalFlags() {
		b.WriteString(".PP\n.nf\n" + escape(strings.TrimRight(c.LocalFlags().FlagUsages(), "\n")) + "\n.fi\n")
	}
	if c.Example != "" {
		b.WriteString(".PP\nExamples:\n.PP\n.nf\n" + escape(c.Example) + "\n.fi\n")
	}
}

// escape makes text of what troff takes for its own: backslashes, hyphens that
// are to be copied as such, and lines that begin with a control character.
func escape(text string) string {
	text = strings.NewReplacer(`\`, `\e`, "-", `\-`).Replace(text)
	lines := strings.Split(text, "\n")
	for i, l := range lines {
		if strings.HasPrefix(l, ".") || strings.HasPrefix(l, "'") {
			lines[i] = `\&` + l
		}
	}
	return strings.Join(lines, "\n")
}

// quote is an argument of a macro.
func quote(text string) string { return `"` + strings.ReplaceAll(escape(text), `"`, `\(dq`) + `"` }

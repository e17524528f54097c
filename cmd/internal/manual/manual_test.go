package manual

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

func TestPage(t *testing.T) {
	run := func(*cobra.Command, []string) {}
	root := &cobra.Command{Use: "prog", Short: "Does well-known things"}
	first := &cobra.Command{Use: "first -c FILE", Short: "Be first", Run: run}
	first.Flags().BoolP("quick", "q", false, "be quick")
	second := &cobra.Command{Use: "second [ADDR]", Short: "Not shown beside Long", Long: "One \\ paragraph.\n\n.hidden 'word\n'quoted", Example: "  prog second 'a\\r'", Run: run}
	secret := &cobra.Command{Use: "secret", Short: "Hidden", Hidden: true, Run: run}
	root.AddCommand(first, second, secret)
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	var b strings.Builder
	if err := Write(&b, root, Page{Version: "1.2", Files: [][2]string{{"/etc/a-b", "A file."}}, SeeAlso: []string{"x(1)", "y(5)"}}); err != nil {
		t.Fatal(err)
	}
	want := `.TH "PROG" 1 "" "prog 1.2" "User Commands"
.SH NAME
prog \- Does well\-known things
.SH SYNOPSIS
.B prog first \-c FILE [flags]
.br
.B prog second [ADDR]
.SH COMMANDS
.SS "first \-c FILE"
Be first.
.PP
.nf
  \-q, \-\-quick   be quick
.fi
.SS "second [ADDR]"
One \e paragraph.
.PP
\&.hidden 'word
\&'quoted
.PP
Examples:
.PP
.nf
  prog second 'a\er'
.fi
.SH FILES
.TP
.I /etc/a\-b
A file.
.SH EXIT STATUS
0, or 1 with what is wrong on standard error.
.SH SEE ALSO
x(1), y(5)
`
	if got := b.String(); got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
}

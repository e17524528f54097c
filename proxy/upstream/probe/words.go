package probe

import (
	"fmt"
	"io"
	"strings"
)

// Result is the report in words, held against what an edge would send.
type Result struct {
	OK       bool
	Findings []string
}

// Judge says what the report means, and whether the relay takes what
// client_address would have it sent: proxy-v2, proxy-v1 or none.
func (r *Report) Judge(clientAddress string) Result {
	v2, v1 := r.V2Verdict(), r.V1Verdict()
	var res Result
	say := func(format string, args ...any) { res.Findings = append(res.Findings, fmt.Sprintf(format, args...)) }
	switch {
	case v2 == Takes:
		say("it takes PROXY v2; write client_address: proxy-v2")
		if r.LocalVerdict() == Refuses {
			say("it does not take LOCAL, which health checks send; write health_check_secs: 0")
		}
	case v1 == Takes:
		say("it takes PROXY v1 only; write client_address: proxy-v1")
	case v2 == Refuses && v1 == Refuses:
		say("it takes no PROXY header; write client_address: none, or turn PROXY on in the relay")
	case len(r.Sent) == 0 || string(r.Sent) == HTTPRequest:
		say("cannot tell: it does nothing that would show it; send the first bytes of its protocol, as in --send 'NICK probe\\r\\n'")
	default:
		say("cannot tell: what is sent makes it do nothing that would show it; send something that it answers, with --send TEXT")
	}
	if (v2 == Takes || v1 == Takes) && r.BareVerdict() == Takes {
		say("it serves connections without a header too; see to it that nobody but the edge reaches it with one")
	}
	verdict := map[string]Verdict{"proxy-v2": v2, "proxy-v1": v1, "none": r.BareVerdict()}[clientAddress]
	res.OK = verdict == Takes
	return res
}

// Print writes what the relay did on each connection.
func (r *Report) Print(w io.Writer) {
	if len(r.Sent) > 0 {
		fmt.Fprintf(w, "sent behind the header: %s\n", quoted(r.Sent))
	}
	for _, row := range []struct {
		name    string
		outcome Outcome
		verdict Verdict
	}{
		{"no header", r.Bare, ""},
		{"PROXY v2", r.V2, r.V2Verdict()},
		{"PROXY v2 LOCAL", r.Local, r.LocalVerdict()},
		{"PROXY v1", r.V1, r.V1Verdict()},
	} {
		verdict := ""
		if row.verdict != "" {
			verdict = " (" + string(row.verdict) + ")"
		}
		fmt.Fprintf(w, "%-15s %s%s\n", row.name+":", row.outcome, verdict)
	}
}

func (o Outcome) String() string {
	var does []string
	if len(o.Answer) > 0 {
		does = append(does, "answers "+quoted(o.Answer))
	}
	switch {
	case o.Err != nil:
		return "cannot be reached: " + o.Err.Error()
	case o.Ended == "closed":
		does = append(does, "closes")
	case o.Ended == "reset":
		does = append(does, "resets")
	case len(o.Answer) == 0:
		return "stays silent"
	}
	return strings.Join(does, ", ")
}

// quoted shows the first line, at most 60 bytes, in a form that no terminal obeys.
func quoted(b []byte) string {
	line, more, _ := strings.Cut(string(b), "\n")
	line = strings.TrimSuffix(line, "\r")
	dots := ""
	if len(line) > 60 || more != "" {
		line, dots = line[:min(60, len(line))], "…"
	}
	return fmt.Sprintf("%q", line) + dots
}

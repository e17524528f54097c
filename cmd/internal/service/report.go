package service

import (
	"log/slog"
	"strings"

	"relayedge/cmd/internal/policy"
	"relayedge/internal/policyfile"
)

// ReportLimits logs every limit of a section, its value in force and where that
// comes from, each on one line. section is the section's path, with a dot behind;
// limits that stand under limits are named without it, as in the metrics.
func ReportLimits(log *slog.Logger, section string, limits any, origin func(key string) string) {
	shown := strings.TrimPrefix(strings.TrimPrefix(section, "relay."), "limits.")
	for _, v := range policyfile.Values(limits) {
		log.Info("limit", "limit", shown+v.Key, "value", v.Text, "from", origin(section+v.Key))
	}
}

// Warning is something that an operator should know at the start: what it is
// and what to do, on one line.
type Warning struct {
	Text  string
	Attrs []any
}

// Warn logs them.
func Warn(log *slog.Logger, warnings []Warning) {
	for _, w := range warnings {
		log.Warn(w.Text, w.Attrs...)
	}
}

// Warnings are those that both commands have.
func Warnings(p *policy.Policy, d Descriptors, key string) (warnings []Warning) {
	if d.Short() {
		warnings = append(warnings, Warning{
			"the descriptor limit does not cover " + key + ": who comes when no more fit is refused; " + d.Advice(key),
			[]any{"descriptors", d.Limit, "needed", d.Needed(), "fit", d.Room()},
		})
	}
	if p.Log.ClientAddresses == "full" {
		warnings = append(warnings, Warning{
			"lines about connections hold the addresses of clients; write log.client_addresses: prefix, or leave it out, unless somebody needs them",
			nil,
		})
	}
	return warnings
}

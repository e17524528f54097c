package main

import (
	"errors"
	"flag"
	"fmt"
	"slices"
	"strings"
)

// options are those of a run.
type options struct {
	rounds int
	ops    []string
	peers  []string // ours is not among them
	engine string
	out    string
	cache  string
	scale  float64
	host   bool // stay on the host
	system bool // take this system's peers

	// What the run inside of the namespaces is told.
	folder string
	tree   string
}

var engines = []string{"auto", "loop", "stream"}

// parseOptions wants the names of all operations and the folder of the user's cache.
func parseOptions(args []string, operations []string, cache string) (*options, error) {
	var o options
	flags := flag.NewFlagSet("edge", flag.ContinueOnError)
	flags.IntVar(&o.rounds, "rounds", 5, "rounds")
	ops := flags.String("ops", strings.Join(operations, ","), "operations")
	others := flags.String("peers", "haproxy,nginx,hitch,naive", "what runs beside relayedge; stream is relayedge with the engine of that name")
	flags.StringVar(&o.engine, "engine", "auto", "relayedge's engine: "+strings.Join(engines, ", "))
	flags.StringVar(&o.out, "out", "", "file for the results; none if empty")
	flags.StringVar(&o.cache, "cache", cache, "folder for the peers' system")
	flags.Float64Var(&o.scale, "scale", 1, "factor for all counts and periods, for trying")
	flags.BoolVar(&o.host, "host", false, "stay in the host's namespaces, with this system's peers")
	flags.BoolVar(&o.system, "system", false, "take this system's peers")
	flags.StringVar(&o.folder, "folder", "", "for the run inside of the namespaces: its folder")
	flags.StringVar(&o.tree, "tree", "/", "for the run inside of the namespaces: the root of the peers' system")
	if err := flags.Parse(args); err != nil {
		return nil, err
	}
	var errOps, errPeers error
	o.ops, errOps = list(*ops, operations)
	o.peers, errPeers = list(*others, peerNames())
	var faults []error
	for _, fault := range []struct {
		flag string
		err  error
	}{{"ops", errOps}, {"peers", errPeers}} {
		if fault.err != nil {
			faults = append(faults, fmt.Errorf("-%s: %w", fault.flag, fault.err))
		}
	}
	if flags.NArg() > 0 {
		faults = append(faults, fmt.Errorf("%q is no flag", flags.Arg(0)))
	}
	if o.rounds < 1 || o.rounds > 100 {
		faults = append(faults, errors.New("-rounds: 1 to 100 are allowed"))
	}
	if !(o.scale > 0 && o.scale <= 10) {
		faults = append(faults, errors.New("-scale: more than 0, up to 10, is allowed"))
	}
	if !slices.Contains(engines, o.engine) {
		faults = append(faults, fmt.Errorf("-engine: %q is none of %s", o.engine, strings.Join(engines, ", ")))
	}
	return &o, errors.Join(faults...)
}

// peerNames are those that can run beside ours.
func peerNames() (names []string) {
	for _, p := range peers {
		if p.name != ours {
			names = append(names, p.name)
		}
	}
	return names
}

// list parses names that commas part, each one of those allowed.
func list(names string, allowed []string) ([]string, error) {
	var all []string
	for name := range strings.SplitSeq(names, ",") {
		if name = strings.TrimSpace(name); !slices.Contains(allowed, name) {
			return nil, fmt.Errorf("%q is none of %s", name, strings.Join(allowed, ", "))
		}
		if !slices.Contains(all, name) {
			all = append(all, name)
		}
	}
	return all, nil
}

// rotated has another one begin in each round.
func rotated[T any](all []T, round int) []T {
	if len(all) == 0 {
		return nil
	}
	round %= len(all)
	return slices.Concat(all[round:], all[:round])
}

package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"time"
)

// measure has each proxy do each operation in each round.
func (o *options) measure(ctx context.Context, s *site, where string, out io.Writer) (*results, error) {
	r := &results{
		Date: time.Now().UTC().Truncate(time.Second), Machine: thisMachine(), Engine: o.engine,
		Rounds: o.rounds, Scale: o.scale, Where: where, Peers: "this system", Versions: make(map[string]string),
	}
	if s.tree != "/" {
		r.Peers = "Debian " + suiteOfPeers
	}
	chosen, err := o.choose(s, r)
	if err != nil {
		return nil, err
	}
	r.head(out)
	running, err := s.launchAll(chosen)
	defer func() {
		for _, p := range running {
			p.end()
		}
	}()
	if err != nil {
		return nil, err
	}
	doing, err := o.able(chosen, running, r)
	if err != nil {
		return nil, err
	}
	var ways []string
	for _, way := range holdings {
		if slices.Contains(o.ops, way) {
			ways = append(ways, way)
		}
	}
	if len(doing) == 0 { // memory alone: those of the other operations are not needed
		for _, p := range running {
			p.end()
		}
		running = nil
	}
	for round := range o.rounds {
		for _, step := range doing {
			for _, p := range rotated(step.by, round) {
				if err := ctx.Err(); err != nil {
					return nil, err
				}
				values, err := again(out, step.name+" of "+p.name, func() ([]float64, error) { return step.do(s, p) })
				if err != nil {
					return nil, fmt.Errorf("%s of %s: %w; it says: %s", step.name, p.name, err, p.said())
				}
				for i, row := range step.rows {
					r.add(row, p.name, values[i])
				}
			}
			r.progress(out, round, step.rows)
		}
		if len(ways) == 0 {
			continue
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		record, err := again(out, "memory", func() (found []figure, err error) {
			err = s.memories(chosen, ways, round, func(row, proxy string, value float64) {
				found = append(found, figure{row, proxy, []float64{value}})
			})
			return found, err
		})
		if err != nil {
			return nil, err
		}
		var of []string
		for _, f := range record {
			r.add(f.Row, f.Proxy, f.Values[0])
			if !slices.Contains(of, f.Row) {
				of = append(of, f.Row)
			}
		}
		r.progress(out, round, of)
	}
	return r, nil
}

// again tries once more, so that an accident of one moment does not cost a run.
func again[T any](out io.Writer, what string, do func() (T, error)) (T, error) {
	value, err := do()
	if err != nil {
		fmt.Fprintf(out, "%s is tried once more: %v\n", what, err)
		value, err = do()
	}
	return value, err
}

// choose finds the peers that are there, ours first, and their versions.
func (o *options) choose(s *site, r *results) ([]*peer, error) {
	var chosen []*peer
	for _, name := range append([]string{ours}, o.peers...) {
		p, err := peerNamed(name)
		if err != nil {
			return nil, err
		}
		if p.debian && !p.there(s.tree) {
			r.LeftOut = append(r.LeftOut, leftOut{"all", name, "it is not installed"})
			continue
		}
		r.Versions[name] = p.version(s.tree)
		if p.debian {
			r.Versions["OpenSSL"] = opensslVersion(s.tree)
		}
		chosen = append(chosen, p)
	}
	return chosen, nil
}

// launchAll returns those that run even if one does not.
func (s *site) launchAll(chosen []*peer) (running []*proxy, err error) {
	for _, peer := range chosen {
		p, err := s.launch(peer, false)
		if err != nil {
			return running, err
		}
		running = append(running, p)
	}
	return running, nil
}

// step is an operation and who does it.
type step struct {
	operation
	by []*proxy
}

// able leaves out what peers do not do.
func (o *options) able(chosen []*peer, running []*proxy, r *results) (steps []step, err error) {
	for _, op := range operations {
		if !slices.Contains(o.ops, op.name) {
			continue
		}
		next := step{operation: op}
		for i, p := range running {
			why, err := op.able(chosen[i], p)
			if err != nil {
				return nil, err
			}
			if why != "" {
				r.LeftOut = append(r.LeftOut, leftOut{op.name, p.name, why})
				continue
			}
			next.by = append(next.by, p)
		}
		steps = append(steps, next)
	}
	return steps, nil
}

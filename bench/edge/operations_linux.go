package main

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"time"
)

// operation is what is done with each proxy, while all of them run.
type operation struct {
	name string
	rows []string // what do returns
	do   func(s *site, p *proxy) ([]float64, error)
	try  func(p *proxy) error // whether the proxy can do it at all; nil for what all can
}

var operations = []operation{
	visiting("handshake", tls.X25519, false),
	visiting("mlkem", tls.X25519MLKEM768, false),
	visiting("resumed", tls.X25519, true),
	echoing("echo64", 64, 0),
	echoing("echo1000", 1000, 0),
	echoing("paced", 1000, 3000),
	{name: "refusal", rows: []string{"refusal"}, do: refusal},
	moving("download", wantDownload),
	moving("upload", wantUpload),
	{name: "fairness", rows: []string{"fair_alone", "fair_beside"}, do: fairness},
}

func micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

// visiting is a handshake, one byte there and back, and the end.
func visiting(name string, group tls.CurveID, resume bool) operation {
	return operation{
		name: name, rows: []string{name},
		do: func(s *site, p *proxy) ([]float64, error) {
			ready, run := p.clients.visits(s.load.handshakes, group, resume)
			if err := ready(); err != nil {
				return nil, err
			}
			cost, err := p.cost(run)
			return []float64{micros(cost)}, err
		},
		try: func(p *proxy) error {
			var cache tls.ClientSessionCache
			if resume {
				cache = tls.NewLRUClientSessionCache(4)
			}
			config := p.clients.config(group, cache)
			_, err := p.clients.visit(config)
			if err != nil || !resume {
				return err
			}
			resumed, err := p.clients.visit(config)
			if err == nil && !resumed {
				err = errors.New("it resumes no session")
			}
			return err
		},
	}
}

func echoing(name string, connections, rate int) operation {
	return operation{
		name: name, rows: []string{name},
		do: func(s *site, p *proxy) ([]float64, error) {
			conns, err := p.clients.open(connections, p.clients.echoed)
			if err != nil {
				return nil, err
			}
			defer leave(conns)
			cost, err := p.cost(func() (int, error) {
				took, err := p.clients.echoes(conns, s.load.period, rate)
				if err == nil && len(took) == 0 {
					err = errors.New("nothing was echoed")
				}
				return len(took), err
			})
			return []float64{micros(cost)}, err
		},
	}
}

func refusal(s *site, p *proxy) ([]float64, error) {
	f, err := newFlooder(p.clients.address, perAddress)
	if err != nil {
		return nil, err
	}
	defer f.leave()
	cost, err := p.cost(func() (int, error) { return f.flood(s.load.refusals, s.load.period) })
	return []float64{micros(cost)}, err
}

// moving is bulk one way, over four connections, in milliseconds a GiB.
func moving(name string, way byte) operation {
	return operation{
		name: name, rows: []string{name},
		do: func(s *site, p *proxy) ([]float64, error) {
			const connections = 4
			conns, err := p.clients.open(connections, nothing)
			if err != nil {
				return nil, err
			}
			defer leave(conns)
			cost, err := p.cost(func() (int, error) {
				return 1, p.clients.bulk(conns, bytes.Repeat([]byte{way}, connections), s.load.bulk/connections, func() {})
			})
			return []float64{float64(cost) / float64(time.Millisecond) * (1 << 30) / float64(s.load.bulk)}, err
		},
	}
}

// fairness is what paced echoes wait, alone and beside bulk streams.
func fairness(s *site, p *proxy) ([]float64, error) {
	const connections, rate, part = 16, 1000, 0.99
	conns, err := p.clients.open(connections, p.clients.echoed)
	if err != nil {
		return nil, err
	}
	defer leave(conns)
	measure := func() (float64, error) {
		took, err := p.clients.echoes(conns, 2*s.load.period, rate)
		if err != nil {
			return 0, err
		}
		d, err := percentile(took, part)
		return micros(d), err
	}
	if err := p.rest(); err != nil {
		return nil, err
	}
	alone, err := measure()
	if err != nil {
		return nil, err
	}
	beside, _, err := help("streams", p.clients.address, s.certificate())
	if err != nil {
		return nil, err
	}
	defer beside.close()
	loaded, err := measure()
	if err == nil {
		err = beside.close() // an error if the streams have not lasted
	}
	return []float64{alone, loaded}, err
}

// able says why a proxy does not do an operation; nil if it does. Of ours that is a
// fault.
func (op operation) able(of *peer, p *proxy) (why string, err error) {
	if why := of.cannot[op.name]; why != "" {
		return why, nil
	}
	if op.try == nil {
		return "", nil
	}
	if err := op.try(p); err != nil {
		if of.name == ours {
			return "", fmt.Errorf("%s of %s: %w", op.name, of.name, err)
		}
		return err.Error(), nil
	}
	return "", nil
}

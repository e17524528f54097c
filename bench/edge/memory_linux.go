package main

import (
	"fmt"
	"strconv"
	"time"
)

// holdings are the ways of the memory operations. The first is for all proxies; the
// others, of which the peers' figures would say little, for ours alone.
var holdings = []string{"idle", "silent", "half", "refused"}

// holding is a proxy of its own, whose memory is compared with what it was.
type holding struct {
	*proxy
	way      string
	pss, rss float64
	n        int // connections, or refused ones
	load     *helper
}

func (h *holding) end() {
	if h.load != nil {
		h.load.close()
	}
	h.proxy.end()
}

// look notes what memory there is without connections.
func (h *holding) look() (err error) {
	h.pss, h.rss, err = h.memory()
	return err
}

// open has the connections opened.
func (h *holding) open(s *site) (err error) {
	h.n = s.load.held
	if h.way != "refused" {
		h.load, _, err = help("hold", h.way, strconv.Itoa(h.n), h.clients.address, s.certificate())
		return err
	}
	f, err := newFlooder(h.clients.address, perAddress)
	if err != nil {
		return err
	}
	defer f.leave()
	h.n, err = f.flood(s.load.refusals, 4*s.load.period)
	return err
}

// perConnection is the growth of PSS for each connection, in bytes.
func (h *holding) perConnection() (float64, error) {
	pss, _, err := h.memory()
	return (pss - h.pss) / float64(h.n), err
}

// memories are all memory operations, in one go, for what they do is wait.
func (s *site) memories(of []*peer, ways []string, round int, record func(row, proxy string, value float64)) error {
	var all []*holding
	defer func() {
		for _, h := range all {
			h.end()
		}
	}()
	for _, way := range ways {
		for _, peer := range rotated(of, round) {
			if way != "idle" && peer.name != ours {
				continue
			}
			p, err := s.launch(peer, way == "silent" || way == "half")
			if err != nil {
				return err
			}
			all = append(all, &holding{proxy: p, way: way})
		}
	}
	time.Sleep(s.load.settle) // what a start has left behind is no part of a connection
	for _, h := range all {
		if err := h.look(); err != nil {
			return err
		}
	}
	for _, h := range all {
		if err := h.open(s); err != nil {
			return fmt.Errorf("%s of %s: %w; it says: %s", h.way, h.name, err, h.said())
		}
	}
	time.Sleep(s.load.settle)
	busy := make([]time.Duration, len(all))
	var err error
	for i, h := range all {
		if busy[i], err = h.cpu(); err != nil {
			return err
		}
	}
	time.Sleep(s.load.watch)
	for i, h := range all {
		after, err := h.cpu()
		if err != nil {
			return err
		}
		bytes, err := h.perConnection()
		if err != nil {
			return err
		}
		switch h.way {
		case "idle":
			record("idle", h.name, bytes/1e3)
			record("idle_cpu", h.name, 100*float64(after-busy[i])/float64(s.load.watch))
		case "refused":
			record("refused", h.name, bytes)
		default:
			record(h.way, h.name, bytes/1e3)
		}
	}
	return s.afterBurst(all, record)
}

// afterBurst has the idle connections go, and looks at what is left.
func (s *site) afterBurst(all []*holding, record func(row, proxy string, value float64)) error {
	some := false
	for _, h := range all {
		if h.way == "idle" {
			some = true
			if err := h.load.close(); err != nil {
				return err
			}
		}
	}
	if !some {
		return nil
	}
	time.Sleep(s.load.settle)
	for _, h := range all {
		if h.way != "idle" {
			continue
		}
		_, rss, err := h.memory()
		if err != nil {
			return err
		}
		record("burst", h.name, (rss-h.rss)/1e6)
	}
	return nil
}

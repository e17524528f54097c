package main

import "slices"

// ours is the proxy that the others are compared with.
const ours = "relayedge"

// judged are the peers that the targets name. What else runs beside them is for
// the reader.
var judged = []string{"haproxy", "nginx", "hitch"}

// row is one kind of figure.
type row struct {
	name string
	unit string
	what string
	// What the ratio of the best peer over ours has to be, and is meant to be.
	// Rows without are not compared by ratio.
	must, goal float64
	// The same of our own figure alone, at most; 0 where there is none.
	most, wish float64
}

func (r row) compared() bool { return r.must > 0 }

// rows are all there are, in the order in which they are shown.
var rows = []row{
	{name: "handshake", unit: "µs", what: "full handshake, X25519", must: 1.10, goal: 1.30},
	{name: "mlkem", unit: "µs", what: "full handshake, X25519MLKEM768", must: 1.05, goal: 1.20},
	{name: "resumed", unit: "µs", what: "resumed handshake", must: 1.10, goal: 1.30},
	{name: "echo64", unit: "µs", what: "echo of 1 KB, 64 connections", must: 1.15, goal: 1.40},
	{name: "echo1000", unit: "µs", what: "echo of 1 KB, 1,000 connections", must: 1.25, goal: 1.50},
	{name: "paced", unit: "µs", what: "echo of 1 KB, 3,000 a second over 1,000 connections", must: 1.10, goal: 1.50},
	{name: "refusal", unit: "µs", what: "refused connection", must: 1.5, goal: 2.0},
	{name: "download", unit: "ms", what: "download, a GiB", must: 1.2, goal: 1.5},
	{name: "upload", unit: "ms", what: "upload, a GiB", must: 1.2, goal: 1.5},
	{name: "idle", unit: "KB", what: "idle connection, PSS", must: 2.5, goal: 4, most: 10, wish: 7},
	{name: "idle_cpu", unit: "%", what: "CPU while all of them are idle, of a core", most: 1, wish: 1},
	{name: "burst", unit: "MB", what: "RSS that is left when they have gone, over that before"},
	{name: "fair_alone", unit: "µs", what: "paced echo, 99th percentile, alone"},
	{name: "fair_beside", unit: "µs", what: "paced echo, 99th percentile, beside 4 bulk streams"},
	{name: "silent", unit: "KB", what: "connection that says nothing, PSS"},
	{name: "half", unit: "KB", what: "connection after half a ClientHello, PSS"},
	{name: "refused", unit: "bytes", what: "what a refused connection leaves, PSS"},
}

// rowNamed finds a row; a run's file may name one that is no more.
func rowNamed(name string) (row, bool) {
	i := slices.IndexFunc(rows, func(r row) bool { return r.name == name })
	if i < 0 {
		return row{}, false
	}
	return rows[i], true
}

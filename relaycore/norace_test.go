//go:build !race

package relaycore

const raceEnabled = false

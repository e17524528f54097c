// Package relayedge holds the project's own rules as tests: which package may
// import which, and that every dependency is accounted for. The programs are in
// cmd/relayedge and cmd/relaycore; README.md says what they are and where the
// code stands.
package relayedge

// Package handover starts a process that is to take another's place, and is the
// line between the two: messages and descriptors, over a socket that the child is
// started with. It knows neither what is handed over nor why.
package handover

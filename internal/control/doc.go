// Package control is how the commands of an operator speak to a running process:
// HTTP over a unix socket. It owns the socket and its bounds; what is asked and
// answered belongs to whoever serves.
//
// Who may connect is told by the mode of the file, 0600: whoever is the user of
// the process, or root, is trusted wholly. A peer that hangs still costs no more
// than one of a few connections for a few seconds, and one that has asked nothing
// makes way for who comes.
package control

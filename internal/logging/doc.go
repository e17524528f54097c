// Package logging makes the logger of both commands: what stands on a line, what
// is held back, and how an address is written. It does not know what is worth
// a line; that is for whoever logs.
//
//   - One event is one line, whatever its values hold: what a terminal or another
//     reader of lines could obey is written as an escape, in both formats.
//   - A storm is folded. Lines of one kind, which is the level, the message and
//     what the operator has named (listener, upstream, …), are shown a few times
//     in a window; the rest is counted, and one line says how many there were.
//     Lines of the level debug are not folded: who asks for them asks for each.
//   - An address of a client stands on a line only as the attribute that [Client]
//     makes, and only as far as log.client_addresses allows.
package logging

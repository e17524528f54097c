// Package succession keeps the counts of a gate exact while processes follow each
// other: the older ones still have connections, the newest one admits.
//
// An [Elder] is the side of a process that is followed, a [Successor] the side of
// the one that follows. Between the two is a line ([handover.Line]); each older
// process has one of its own to each newer one, so that the end of any of them
// tells the others nothing wrong about a third. On it the older process tells what
// it holds of each host and site, first all of it and then what has changed; the
// newer one counts that beside its own. The end of the line frees at once all that
// was told on it.
//
// Whatever is told of a key is all that the process holds of it, not a difference:
// so nothing is counted or freed twice, in whatever order things end.
//
// The connections of an older process that a PROXY header names late are decided by
// the newest one, which is asked: two that decide could let in one too many. It
// counts such a connection from its answer on, by a reservation that ends when the
// older process has told of it.
//
// An older process goes on telling every newer one that lives, and counts what even
// older ones tell. So when all newer ones have ended it takes over again, with
// exact counts; before that it has those that are older than itself tell it what it
// may have missed.
package succession

// Package places serves HTTP on a few connections so that those who say nothing
// keep nobody out. A connection holds one of the places until it is closed. Where
// all are taken, the oldest connection that is not being answered makes way for
// the next: one that has sent nothing, a part of a request, or has its answer and
// stays. One whose answer is under way is never ended for another; where all are,
// the next waits.
//
// Whoever has asked is not mistaken for silent because the server has not come to
// it yet: what has come and is not read counts, and the first moments of a
// connection do. The package knows requests and answers by their beginnings and
// ends alone; sizes and times of one are the server's.
package places

// Package push wakes clients that are away: each may leave an endpoint, an HTTPS
// URL of its push service (UnifiedPush, Web Push), which gets an empty POST when
// a message is queued for it. The package owns the registrations, the budget of
// each and what may be called at all; it does not know sessions and mailboxes,
// nor what was queued.
//
// An endpoint is somebody else's server, named by a stranger, and called from
// inside the operator's network. So only hosts of a list are called, by HTTPS
// alone; the address is judged where the connection is made, after the name was
// resolved, and none but public ones are dialled; redirects are not followed; an
// answer is read for its status and no further than it takes to use the
// connection again. It is a secret as well: whoever has it can wake the client,
// so it is in no log, metric or error.
//
// A wake-up is never worth a message. [Waker.Wake] only takes a note, and what
// follows may be skipped: because the registration's budget for the hour is
// spent, because its last wake-up is still under way, because the service answers
// 429. Who wants to know calls [Waker.Test], which says so.
package push

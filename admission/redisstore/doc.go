// Package redisstore keeps rate limits in Redis or Valkey, so that several
// processes count together: [admission.Windows] and [admission.Messages], each
// decision one script in one round trip, by the server's clock. Beside them it keeps
// sealed [Records] that processes share, and locks. It owns the redis
// section of the policy and the connection. It does not know what is limited, nor
// how much, and it makes no keys: those are hashes when they come here
// ([admission.KeyMaker], with the secret of secret_file), so that the server holds no
// credential, name or address.
//
// Redis 6 or later is needed, or Valkey.
//
// # What is stored
//
// HEX is an admission.Key, prefix the policy's; a name is a word of ours.
//
//	prefix:NAME:HEX                    "count reset": a fixed window. It lives until the window ends.
//	prefix:{messages}:sender:HEX       "seen owes": a sender's token bucket, until it is full
//	prefix:{messages}:sender:HEX:hour  a sliding window, until an hour after its last message
//	prefix:{messages}:sender:HEX:day   likewise, a day
//	prefix:{messages}:reader:HEX       the bucket of a host that reads
//	prefix:{messages}:reads, :reads:hour, :reads:day      the reads of all
//	prefix:{messages}:global, :global:hour, :global:day   all together
//	prefix:{records}:SPACE             the names of a space's records, with their ends
//	prefix:{records}:SPACE:NAME        a record, sealed (AES-256-GCM, by a key from secret_file)
//	prefix:{records}:SPACE!NAME        a lock: a random token, for 10 seconds after its holder's last word
//	prefix:{fleet}:...                 what edges hold of their connections, by fleet.lua, until 12 s after the last beat
//	prefix:probe                       what tries a store that was away, for a second
//
// Each script sets the end of every key that it writes, and gives one to a key of ours
// that has lost it: no key stays for ever, and after the longest window without a
// request nothing is left but records, which end when their owner says. A value that
// is none of ours is replaced. What is
// refused counts for nothing.
//
// A sliding window is a list of at most 4,097 entries of ten bytes, one for each message,
// where its limit is up to 4,096: about 50 KB. Above it has an entry for each 60th of
// the hour, or 96th of the day, which leaves as a whole when its last message does;
// so no window ever holds more than its limit, and a step at most is given away. A
// sender at the default limits takes about 15 KB, a fixed window 140 bytes. The server
// needs memory for that and the policy noeviction: a key that is evicted is a limit
// forgotten. Nothing here bounds the number of keys but their short lives: whoever
// asks does, by the keys that a host may open.
//
// Times are the server's, told in decisions too, so that processes whose clocks
// differ name the same end of a window. Where its clock is set back, or a replica with
// another takes over, no window lasts longer than its length from then; where it
// is set forward, windows end early once.
//
// # While the store is away
//
// A decision waits 50 ms for the store, in all; one that has no answer by then is
// made without it. After five in a row the store is away: nobody waits for it any
// longer, one goroutine tries it every 250 ms, and four trials in a row that succeed,
// each of them a decision that writes, make it back, a second or two after it
// is. Both changes are a line in the log each. Meanwhile the use decides by on_failure:
// the limits of this process alone (local), or a refusal that says Unavailable.
//
// The local limits count only what they decide. Neither side is told of the other: an
// absence begins with empty local windows, and what was allowed meanwhile is not
// charged to the store afterwards. So with n processes, within one window around an
// absence, a key has at most n+1 times its limit. A decision whose answer
// came too late may stand charged in the store besides; it is never made twice
// there. A server that lost its memory has empty windows.
//
// # Sentinel and Cluster
//
// With redis+sentinel:// the sentinels are asked who the master is, and a change is
// followed. Until it has happened the store is away. Replication is asynchronous: what a
// master had counted and not yet passed on is allowed again.
//
// With redis+cluster:// fixed windows are spread over all nodes by their keys. All
// of the message limits share the hash tag {messages}, and with it one slot of one
// node, for a message is charged to its sender and to all together or to neither:
// their rate is that of one node, some ten thousand decisions a second. The store
// counts as away when five decisions in a row fail, of whatever node.
package redisstore

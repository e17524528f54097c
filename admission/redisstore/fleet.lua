-- One beat of an edge of a fleet: what admission.Fleet tells and asks.
--
-- KEYS: 1 edges, 2 totals, 3 tight, 4 changed, 5 gone, 6 buckets. What an edge
-- claims stands in a hash of its own, named as the first and its id behind it.
--   edges    a hash, id: "until number edges seen", until in milliseconds; "#": the version;
--            "@": since when there has been one, in microseconds
--   totals   a hash, key: the claims of all edges
--   tight    a hash, key: since which version
--   changed  a sorted set, key: the version of its last change, of keys that are tight or whose bucket is not full
--   gone     a sorted set, key: since which version it is tight no longer, until all edges have seen that
--   buckets  a sorted set, key: when its bucket is full again, in microseconds
-- ARGV: 1 id, 2 lease in milliseconds, 3 number, 4 begin, 5 edges, 6 seen, 7 news,
-- 8 cursor, and for each ask key, held, need, want, cap, spent in microseconds. The
-- word "leave" in place of all from 3 on is an edge's good-bye.
-- Answers {unknown, edges, version, more}, and for each answer key, claim, total,
-- tight, debt in microseconds.
local edges, totals, tight, changed, gone, buckets = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local id, lease = ARGV[1], tonumber(ARGV[2])
local now = clock()
local leaves = ARGV[3] == 'leave'
local page = 1000

local function whole(n) return string.format('%.0f', n) end
local function claims(of) return edges .. ':' .. of end
-- What is no number is 0, whoever has put it there.
local function field(hash, key) return tonumber(redis.call('HGET', hash, key) or 0) or 0 end
local function claim(of, key) return field(claims(of), key) end
local function free(cap, n) return math.max(1, math.floor(cap / (2 * n))) end

-- A value of a kind that is not ours is as good as none: it has no end of its own,
-- and every beat would fail for it.
local function own(key, kind)
	local there = redis.call('TYPE', key).ok
	if there ~= kind and there ~= 'none' then
		redis.call('DEL', key)
	end
end
for i, kind in ipairs({'hash', 'hash', 'hash', 'zset', 'zset', 'zset'}) do
	own(KEYS[i], kind)
end
own(claims(id), 'hash')
if not string.match(redis.call('HGET', edges, '#') or '0', '^%d+$') then
	redis.call('HDEL', edges, '#')
end

local function change(set, key)
	redis.call('ZADD', set, redis.call('HINCRBY', edges, '#', 1), key)
end

local function loosen(key)
	redis.call('HDEL', tight, key)
	if not redis.call('ZSCORE', buckets, key) then
		redis.call('ZREM', changed, key)
	end
	change(gone, key)
end

-- What nobody beats for is over by then, whoever was to forget it.
local function keep()
	for _, key in ipairs(KEYS) do
		redis.call('PEXPIRE', key, whole(4 * lease))
	end
end

-- The edges that are alive. The claims of the others are given back.
local alive, n = {}, 0
local function drop(of)
	local held = redis.call('HGETALL', claims(of))
	for i = 1, #held, 2 do
		local key = held[i]
		local total = field(totals, key) - (tonumber(held[i + 1]) or 0)
		if total > 0 then
			redis.call('HSET', totals, key, whole(total))
		else
			redis.call('HDEL', totals, key)
		end
		if redis.call('HEXISTS', tight, key) == 1 then
			if total <= 0 then
				loosen(key)
			else
				change(changed, key)
			end
		end
	end
	redis.call('DEL', claims(of))
	redis.call('HDEL', edges, of)
end

local all = redis.call('HGETALL', edges)
for i = 1, #all, 2 do
	if all[i] ~= '#' and all[i] ~= '@' then
		local till, number, by, seen = string.match(all[i + 1], '^(%d+) (%d+) (%d+) (%d+)$')
		own(claims(all[i]), 'hash')
		if not till or tonumber(till) * 1000 <= now or (leaves and all[i] == id) then
			drop(all[i])
		else
			alive[all[i]] = {number = tonumber(number), edges = tonumber(by), seen = tonumber(seen)}
			n = n + 1
		end
	end
end
if leaves then
	if n == 0 then
		redis.call('DEL', unpack(KEYS))
	end
	keep()
	return {0, n, 0, 0}
end

local number, begin, cursor = tonumber(ARGV[3]), ARGV[4] == '1', tonumber(ARGV[8])
local version = field(edges, '#')
local me = alive[id]
if me and not (me.number + 1 == number or (begin and me.number < number)) or not me and not begin or cursor > version then
	return {1, n, 0, 0}
end
-- While this lasts there may be edges that have not told yet what they hold: that
-- none is known is so because there was none, or because they were cut off or forgotten.
local first = field(edges, '@')
if n == 0 or first <= 0 or first > now then
	first = now
	redis.call('HSET', edges, '@', whole(now))
end
local young = now - first < lease * 1000

if not me then
	me = {}
	alive[id] = me
	n = n + 1
end
me.number, me.edges, me.seen = number, n, tonumber(ARGV[6])
if tonumber(ARGV[5]) > 0 then
	me.edges = math.min(n, tonumber(ARGV[5]))
end
redis.call('HSET', edges, id, table.concat({whole(math.floor(now / 1000) + lease), ARGV[3], me.edges, ARGV[6]}, ' '))

-- Some of the buckets that are full again.
for _, key in ipairs(redis.call('ZRANGEBYSCORE', buckets, '-inf', whole(now), 'LIMIT', 0, 100)) do
	redis.call('ZREM', buckets, key)
	if redis.call('HEXISTS', tight, key) == 0 then
		redis.call('ZREM', changed, key)
	end
end

local answer = {0, n, 0, 0}
local function tell(key)
	local full = tonumber(redis.call('ZSCORE', buckets, key) or 0)
	local at = #answer
	answer[at + 1] = key
	answer[at + 2] = claim(id, key)
	answer[at + 3] = field(totals, key)
	answer[at + 4] = redis.call('HEXISTS', tight, key)
	answer[at + 5] = math.max(0, full - now)
end

for i = 9, #ARGV, 6 do
	local key, held, need, want = ARGV[i], tonumber(ARGV[i + 1]), tonumber(ARGV[i + 2]), tonumber(ARGV[i + 3])
	local cap, spent = tonumber(ARGV[i + 4]), tonumber(ARGV[i + 5])
	local since = field(tight, key)
	-- The claims of the others; what is left of the cap beside those and what each may
	-- have without; and what all would have if nothing were tight.
	local others, left, loose = 0, cap, 0
	for of, edge in pairs(alive) do
		if of ~= id then
			local c = claim(of, key)
			local most = math.max(c, free(cap, edge.edges))
			others, loose = others + c, loose + most
			if since == 0 or edge.seen < since then
				left = left - most
			else
				left = left - c
			end
		end
	end
	local give = held
	if cap > 0 then
		-- What it has and needs is not taken away: it counts on that until it is told.
		give = math.max(held, math.min(want, math.max(young and 0 or left, math.min(claim(id, key), need))))
		loose = loose + math.max(give, free(cap, me.edges))
	end
	local total = others + give
	if give > 0 then
		redis.call('HSET', claims(id), key, whole(give))
	else
		redis.call('HDEL', claims(id), key)
	end
	if total > 0 then
		redis.call('HSET', totals, key, whole(total))
	else
		redis.call('HDEL', totals, key)
	end
	if spent > 0 then
		local full = math.max(now, tonumber(redis.call('ZSCORE', buckets, key) or 0)) + spent
		redis.call('ZADD', buckets, whole(full), key)
	end
	if since == 0 and cap > 0 and need > left and total > 0 then
		redis.call('ZREM', gone, key)
		change(changed, key)
		redis.call('HSET', tight, key, redis.call('HGET', edges, '#'))
	elseif since > 0 and (total == 0 or cap > 0 and need <= give and loose <= cap and 4 * total <= cap) then
		loosen(key)
		if spent > 0 then
			change(changed, key)
		end
	elseif since > 0 or spent > 0 then
		change(changed, key)
	end
	tell(key)
end

if ARGV[7] == '1' then
	version = field(edges, '#')
	for _, set in ipairs({changed, gone}) do
		local news = redis.call('ZRANGEBYSCORE', set, '(' .. whole(cursor), '+inf', 'WITHSCORES', 'LIMIT', 0, page + 1)
		for i = 1, math.min(#news, 2 * page), 2 do
			tell(news[i])
		end
		if #news > 2 * page then
			version = math.min(version, tonumber(news[2 * page]))
			answer[4] = 1
		end
	end
	answer[3] = version
end

local seen = me.seen
for _, edge in pairs(alive) do
	seen = math.min(seen, edge.seen)
end
redis.call('ZREMRANGEBYSCORE', gone, '-inf', whole(seen))

keep()
redis.call('PEXPIRE', claims(id), whole(4 * lease))
return answer

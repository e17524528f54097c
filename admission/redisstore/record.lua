-- Sealed records of one space. All its keys share a hash tag, and so a node.
-- KEYS[1] is the space's list: a sorted set of the names, each with the end of
-- its record in milliseconds of the server's clock. The record NAME is at
-- KEYS[1]:NAME, a lock at KEYS[1]!NAME.
-- ARGV[1] is what to do; what follows depends on it.
local list, verb = KEYS[1], ARGV[1]
local function record(name) return list .. ':' .. name end
local function lock(name) return list .. '!' .. name end
local function text(key)
	local held = redis.pcall('GET', key)
	return type(held) == 'string' and held or nil
end
local now = math.floor(clock() / 1000)

-- A list of a kind that is not ours is as good as none: it has no end of its own, and
-- nothing could be stored beside it.
local kind = redis.call('TYPE', list).ok
if kind ~= 'zset' and kind ~= 'none' then
	redis.call('DEL', list)
end

-- keep has the list end no sooner than a record that lives so long.
local function keep(life)
	if redis.call('PTTL', list) < life then
		redis.call('PEXPIRE', list, life)
	end
end

-- fenced reports whether the lock that the caller works under is another's by now.
local function fenced(name, token)
	return name ~= '' and text(lock(name)) ~= token
end

local function within(name, prefix)
	return prefix == '' or name == prefix or string.sub(name, 1, #prefix + 1) == prefix .. '/'
end

-- names are those at a prefix and below, but for those whose end has come.
local function names(prefix)
	redis.call('ZREMRANGEBYSCORE', list, '-inf', now)
	local found = {}
	for _, name in ipairs(redis.call('ZRANGE', list, 0, -1)) do
		if within(name, prefix) then
			found[#found + 1] = name
		end
	end
	return found
end

if verb == 'get' then
	-- name, most bytes -> {the record, how long it is still kept}
	local key = record(ARGV[2])
	local length = redis.pcall('STRLEN', key)
	if type(length) ~= 'number' or length > tonumber(ARGV[3]) then
		return redis.error_reply('FOREIGN the record is too large, or of another kind')
	end
	return {redis.call('GET', key) or false, redis.call('PTTL', key)}
end

if verb == 'put' then
	-- name, record, life, most names, lock, token, [what is there, by its head]
	local name, sealed, life = ARGV[2], ARGV[3], tonumber(ARGV[4])
	if fenced(ARGV[6], ARGV[7]) then
		return 'LOST'
	end
	local key = record(name)
	if ARGV[8] then
		local there = string.sub(text(key) or '', 1, 13)
		if there == string.sub(sealed, 1, 13) then
			return 'OK' -- the answer to the first try was lost
		elseif there ~= ARGV[8] then
			return 'OTHER'
		end
	end
	if not redis.call('ZSCORE', list, name) and redis.call('ZCOUNT', list, now, '+inf') >= tonumber(ARGV[5]) then
		return 'FULL'
	end
	-- The first write is one that a server without memory refuses: after any other
	-- it would let this one pass.
	redis.call('SET', key, sealed, 'PX', life)
	redis.call('ZREMRANGEBYSCORE', list, '-inf', now)
	redis.call('ZADD', list, now + life, name)
	keep(life)
	return 'OK'
end

if verb == 'list' then
	-- prefix -> names
	return names(ARGV[2])
end

if verb == 'delete' then
	-- prefix, lock, token
	if fenced(ARGV[3], ARGV[4]) then
		return 'LOST'
	end
	redis.call('DEL', record(ARGV[2]))
	redis.call('ZREM', list, ARGV[2])
	for _, name in ipairs(names(ARGV[2])) do
		redis.call('DEL', record(name))
		redis.call('ZREM', list, name)
	end
	return 'OK'
end

if verb == 'keep' then
	-- prefix, life: has what is there live so long from now, and no less than before
	local life = tonumber(ARGV[3])
	for _, name in ipairs(names(ARGV[2])) do
		local key = record(name)
		local left = redis.call('PTTL', key)
		if left == -2 then
			redis.call('ZREM', list, name)
		elseif left < life then
			redis.call('PEXPIRE', key, life)
			redis.call('ZADD', list, now + life, name)
			keep(life)
		end
	end
	return 'OK'
end

if verb == 'hold' then
	-- lock, token, lease -> whether it is ours
	local key = lock(ARGV[2])
	if redis.call('SET', key, ARGV[3], 'NX', 'PX', ARGV[4]) then
		return 'OK'
	end
	if text(key) == ARGV[3] then
		redis.call('PEXPIRE', key, ARGV[4]) -- the answer to the first try was lost
		return 'OK'
	end
	if redis.call('PTTL', key) < 0 then
		redis.call('PEXPIRE', key, ARGV[4]) -- none of ours has no end
	end
	return 'OTHER'
end

if verb == 'renew' then
	-- lock, token, lease
	if fenced(ARGV[2], ARGV[3]) then
		return 'LOST'
	end
	redis.call('PEXPIRE', lock(ARGV[2]), ARGV[4])
	return 'OK'
end

if verb == 'release' then
	-- lock, token
	if fenced(ARGV[2], ARGV[3]) then
		return 'LOST'
	end
	redis.call('DEL', lock(ARGV[2]))
	return 'OK'
end

return redis.error_reply('FOREIGN no such verb')

-- One request of a fixed window, which begins with the key's first request.
-- KEYS[1] holds "count reset", reset in milliseconds of the server's clock.
-- ARGV: the limit, the window in milliseconds.
-- Answers {allowed, remaining, reset, now}.
local key, limit, window = KEYS[1], tonumber(ARGV[1]), tonumber(ARGV[2])
local now = math.floor(clock() / 1000)
local count, reset = 0, 0

local held = redis.pcall('GET', key)
if type(held) == 'string' then
	local c, r = string.match(held, '^(%d+) (%d+)$')
	count, reset = tonumber(c) or 0, tonumber(r) or 0
end

local stale = false
if reset <= now then
	count, reset = 0, now + window
elseif reset > now + window then
	-- The server's clock was set back, or the window was made shorter.
	reset, stale = now + window, true
end

local allowed = count < limit
if allowed then
	count = count + 1
else
	local left = redis.call('PTTL', key)
	stale = stale or left < 0 or left > window
end
if (allowed or stale) and count > 0 then
	-- SET replaces whatever kind of value was there, and sets the key's end with it.
	redis.call('SET', key, string.format('%.0f %.0f', count, reset), 'PX', string.format('%.0f', reset - now))
end
return {allowed and 1 or 0, math.max(limit - count, 0), reset, now}

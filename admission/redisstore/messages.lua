-- One decision on the message limits.
--
-- KEYS come in threes, one three for each tally: a token bucket, a sliding hour, a
-- sliding day. ARGV[1] is 1 to charge what is allowed, 0 to look. Ten numbers for
-- each tally follow: of the bucket its limit, cost and burst in nanoseconds and
-- length in milliseconds; of each slide its limit, length and step in
-- milliseconds. A limit of 0 is off, of -1 always full; a step of 0 is none.
--
-- A bucket is "seen owes": a time in microseconds, and the nanoseconds from then
-- until it is full. A slide is a list of ten bytes each: a time in milliseconds,
-- rounded up, and how many were counted up to it, modulo 2^32. The first of them has
-- left the window, or never was: the others count from there.
--
-- Answers {off, wait, named, left, reset, now}: 1 if no window counts; how long until
-- none is full; which window is named, from 0; what is left in it; when it resets.
-- Times in microseconds, wait and reset from now.
local now = clock()
local ms = math.ceil(now / 1000)
local serials = 4294967296

local off, wait, named, left, reset, charged = 1, 0, 0, 0, 0, 0

local function full(window, w)
	off = 0
	if w > wait then
		wait, named, left, reset = w, window, 0, w
	end
end

-- c is when it resets if this is charged.
local function room(window, l, r, c)
	if wait == 0 and (off == 1 or l < left) then
		named, left, reset, charged = window, l, r, c
	end
	off = 0
end

-- A value of a kind that is not ours is as good as none.
local function read(command, key, ...)
	local value = redis.pcall(command, key, ...)
	if type(value) == 'table' and value.err then
		redis.call('DEL', key)
		return nil
	end
	return value or nil
end

local function pack(at, to) return struct.pack('>I6I4', at, to % serials) end
local function unpack(entry)
	if entry and #entry == 10 then
		return struct.unpack('>I6I4', entry)
	end
end

local function whole(number) return string.format('%.0f', number) end

local function store(key, owes)
	redis.call('SET', key, whole(now) .. ' ' .. whole(owes), 'PX', whole(math.max(1, math.ceil(owes / 1000000))))
end

local function bucket(window, b)
	if b.limit < 0 then
		return full(window, b.length * 1000)
	end
	b.owes = 0
	local held = read('GET', b.key)
	if held then
		local seen, owes = string.match(held, '^(%d+) (%d+)$')
		seen, owes = tonumber(seen), tonumber(owes)
		if seen then
			b.owes = math.min(math.max(0, owes - math.max(0, now - seen) * 1000), b.burst)
			if seen > now then
				-- The server's clock was set back: what is owed is owed from now.
				store(b.key, b.owes)
			end
		end
	end
	local short = b.owes + b.cost - b.burst
	if short > 0 then
		return full(window, math.ceil(short / 1000))
	end
	room(window, math.floor((b.burst - b.owes) / b.cost), math.ceil(b.owes / 1000), math.ceil((b.owes + b.cost) / 1000))
end

local function leaves(s, at) return (at + s.length) * 1000 - now end

local function slide(window, s)
	if s.limit < 0 then
		return full(window, s.length * 1000)
	end
	s.total = 0
	local ends = read('LRANGE', s.key, 0, 1)
	if not ends or #ends == 0 then
		return room(window, s.limit, 0, leaves(s, ms))
	end
	local _, base = unpack(ends[1])
	local last, to = unpack(redis.call('LINDEX', s.key, -1))
	local first = #ends == 1 and 0 or unpack(ends[2])
	if not base or not last or not first then
		redis.call('DEL', s.key)
		return room(window, s.limit, 0, leaves(s, ms))
	end
	if last > ms + 1 then
		-- The server's clock was set back: what came leaves a length from now.
		redis.call('DEL', s.key)
		redis.call('RPUSH', s.key, pack(0, base), pack(ms, to))
		redis.call('PEXPIRE', s.key, whole(s.length + 2))
		ends, first, last = redis.call('LRANGE', s.key, 0, 1), ms, ms
	end
	while #ends == 2 and leaves(s, first) <= 0 do
		redis.call('LPOP', s.key)
		ends = redis.call('LRANGE', s.key, 0, 1)
		_, base = unpack(ends[1])
		first = unpack(ends[2])
	end
	s.last, s.to, s.total = last, to, (to - base) % serials
	local excess = s.total - s.limit + 1
	if excess <= 0 then
		return room(window, s.limit - s.total, s.total > 0 and leaves(s, last) or 0, leaves(s, ms))
	end
	-- The first entry with which enough have left: mostly the first of all.
	local low, high = 1, 1
	local at, upTo = unpack(ends[2])
	if (upTo - base) % serials < excess then
		low, high = 2, redis.call('LLEN', s.key) - 1
	end
	while low < high do
		local middle = math.floor((low + high) / 2)
		_, upTo = unpack(redis.call('LINDEX', s.key, middle))
		if (upTo - base) % serials < excess then
			low = middle + 1
		else
			high = middle
		end
	end
	if low > 1 then
		at = unpack(redis.call('LINDEX', s.key, low))
	end
	full(window, leaves(s, at))
end

local function chargeSlide(s)
	if not s.to then
		redis.call('RPUSH', s.key, pack(0, 0), pack(ms, 1))
	else
		local at = math.max(ms, s.last)
		local same = at == s.last or s.step > 0 and math.floor(at / s.step) == math.floor(s.last / s.step)
		if same and s.total > 0 then
			redis.call('LSET', s.key, -1, pack(at, s.to + 1))
		else
			redis.call('RPUSH', s.key, pack(at, s.to + 1))
		end
	end
	redis.call('PEXPIRE', s.key, whole(s.length + 2))
end

local buckets, slides = {}, {}
for tally = 0, #KEYS / 3 - 1 do
	local key, arg, window = tally * 3, tally * 10 + 1, tally * 3
	local function number(i) return tonumber(ARGV[arg + i]) end
	local b = {key = KEYS[key + 1], limit = number(1), cost = number(2), burst = number(3), length = number(4)}
	if b.limit ~= 0 then
		bucket(window, b)
		buckets[#buckets + 1] = b
	end
	for i = 1, 2 do
		local s = {key = KEYS[key + 1 + i], limit = number(2 + 3 * i), length = number(3 + 3 * i), step = number(4 + 3 * i)}
		if s.limit ~= 0 then
			slide(window + i, s)
			slides[#slides + 1] = s
		end
	end
end

if wait > 0 then
	-- What is allowed sets the end of every key it touches; what is refused looks
	-- whether one has lost it.
	for _, key in ipairs(KEYS) do
		if redis.call('PTTL', key) == -1 then
			redis.call('PEXPIRE', key, ARGV[#ARGV])
		end
	end
elseif ARGV[1] == '1' then
	for _, b in ipairs(buckets) do
		store(b.key, b.owes + b.cost)
	end
	for _, s in ipairs(slides) do
		chargeSlide(s)
	end
	left, reset = math.max(0, left - 1), charged
end
return {off, wait, named, left, reset, now}

#!lua
-- Return the approvals that have a short id; nearly always one.
-- include lifetimes.lua
-- KEYS[1] expiry zset  deadlines of the tenant, to name its other keys by
-- KEYS[2] key    set   collected cards
-- ARGV[1] short  text  eight hexadecimal digits
-- ARGV[2] days   int   how many days ago the oldest was opened that is looked for
-- Returns:
--   {"found", ids}  their ids, raw; some may be kept no longer
local base, raw = string.match(KEYS[1], '^(.+:)x$'), from_hex(ARGV[1])
local today, found = math.floor(now_ms() / DAY_MS), redis.call('SMEMBERS', KEYS[2])
for day = today - tonumber(ARGV[2]), today do
  local ids = redis.call('GET', ids_of(base, day, ARGV[1])) or ''
  local at = string.find(ids, raw, 1, true)
  while at do
    -- What begins inside an id is none.
    if at % 16 == 1 then found[#found + 1] = string.sub(ids, at, at + 15) end
    at = string.find(ids, raw, at + 1, true)
  end
end
return {'found', found}

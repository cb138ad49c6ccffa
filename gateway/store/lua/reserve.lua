#!lua
-- Reserve what all calls of one turn would use of their windows, once, and say what
-- each window comes to; a later call of the turn sees the earlier ones.
-- include windows.lua
-- KEYS[1] turn         string  the turn's verdicts
-- KEYS[2] reservation  string  what the turn reserved
-- KEYS[3..] windows    zset    the window of each use, as often as it is used
-- ARGV[1] uses         json    array of uses, one for each window key
-- ARGV[2] hold_ms      int     time to open the turn in, milliseconds
-- Returns:
--   {"reserved", array}  sums in millionths, each with its own use
--   {"opened"}           the turn has its verdicts already
if redis.call('EXISTS', KEYS[1]) == 1 then return {'opened'} end
local kept = redis.call('GET', KEYS[2])
-- The same turn, submitted twice at once: both are evaluated by the same sums.
if kept then return {'reserved', cjson.decode(kept)} end

local now = now_ms()
local hold_ms = tonumber(ARGV[2])
local totals = {}
for index, use in ipairs(cjson.decode(ARGV[1])) do
  local window = KEYS[2 + index]
  slide(window, now)
  -- Twice the time: the reservation always ends before what it reserved.
  hold(window, use, now + 2 * hold_ms)
  totals[index] = redis.call('GET', window .. ':sum')
end
redis.call('SET', KEYS[2], cjson.encode(totals), 'PX', hold_ms)
return {'reserved', totals}

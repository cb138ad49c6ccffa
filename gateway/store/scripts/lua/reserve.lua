#!lua
-- Reserve the uses of all calls of one turn, once, and return the sums of their
-- windows; each call's sums include the earlier calls of the turn.
-- include windows.lua
-- KEYS[1] turn         string  the turn's verdicts
-- KEYS[2] reservation  string  what the turn reserved
-- KEYS[3..] windows    zset    the window of each use, once for each use
-- ARGV[1] uses         json    array of uses, one for each window key
-- ARGV[2] hold_ms      int     time limit for opening the turn, milliseconds
-- Returns:
--   {"reserved", array}  sums in millionths, each with its own use
--   {"opened"}           the turn already has its verdicts
if redis.call('EXISTS', KEYS[1]) == 1 then return {'opened'} end
local kept = redis.call('GET', KEYS[2])
-- A turn submitted twice at once is evaluated with the same sums.
if kept then return {'reserved', cjson.decode(kept)} end

local now = now_ms()
local hold_ms = tonumber(ARGV[2])
local totals = {}
for index, use in ipairs(cjson.decode(ARGV[1])) do
  local window = KEYS[2 + index]
  slide(window, now)
  -- Twice the time: the reservation must end before the uses in it.
  hold(window, use, now + 2 * hold_ms)
  totals[index] = redis.call('GET', window .. ':sum')
end
redis.call('SET', KEYS[2], cjson.encode(totals), 'PX', hold_ms)
return {'reserved', totals}

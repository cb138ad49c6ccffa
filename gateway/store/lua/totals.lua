#!lua
-- Return what windows would come to if one item used these instead of its own.
-- KEYS[1] head       hash  what changes of the item's approval
-- KEYS[2..] windows  zset  the window of each use
-- ARGV[1] index      int   the item
-- ARGV[2] uses       json  array of uses, one for each window key
-- Returns:
--   {"totals", array}  sums in millionths, each with its own use
local now = now_ms()
local own = uses_of(KEYS[1], ARGV[1])
local totals = {}
for index, use in ipairs(cjson.decode(ARGV[2])) do
  -- As text with all digits, like the sums of reserve.lua.
  totals[index] = string.format('%.0f', total_with(KEYS[1 + index], use, own, now))
end
return {'totals', totals}

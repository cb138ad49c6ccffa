#!lua
-- Return what windows would come to if items used these instead of their own.
-- include windows.lua
-- KEYS[1..] places  mixed  of each use the head of the item's approval (hash), then the
--                          window (zset)
-- ARGV[1] uses      json   array of {index of the item, use}, one for each pair of keys
-- Returns:
--   {"totals", array}  sums in millionths, each with its own use
local now = now_ms()
-- Each window is looked at once: what it forgets at a look is bounded, and all totals
-- have to start from one sum.
local sums, totals = {}, {}
for index, row in ipairs(cjson.decode(ARGV[1])) do
  local head, window = KEYS[2 * index - 1], KEYS[2 * index]
  sums[window] = sums[window] or slide(window, now)
  local total = total_with(window, row[2], uses_of(head, row[1]), now, sums[window])
  -- As text with all digits, like the sums of reserve.lua.
  totals[index] = string.format('%.0f', total)
end
return {'totals', totals}

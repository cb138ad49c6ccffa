#!lua
-- Return the sums of windows if items used these amounts instead of the reserved ones.
-- include windows.lua
-- KEYS[1..] places  mixed  for each use the head of the item's approval (hash), then the
--                          window (zset)
-- ARGV[1] uses      json   array of {index of the item, use}, one for each pair of keys
-- Returns:
--   {"totals", array}  sums in millionths, each with its own use
local now = now_ms()
-- Each window is trimmed once: trimming is limited, and all results must start from the
-- same sum.
local sums, totals = {}, {}
for index, row in ipairs(cjson.decode(ARGV[1])) do
  local head, window = KEYS[2 * index - 1], KEYS[2 * index]
  sums[window] = sums[window] or slide(window, now)
  local total = total_with(window, row[2], uses_of(head, row[1]), now, sums[window])
  -- As text with all digits, like the sums of reserve.lua.
  totals[index] = string.format('%.0f', total)
end
return {'totals', totals}

-- Fencing check: refuse a process that lost its lease, as another may have gone on.
-- script.py puts this behind the prelude of a fenced script, when there are leases to
-- compare: their keys are then the last ones, and the last arguments are the fence and
-- the token that each has to have (a blank alone: nobody may hold it), and their number.
-- The token, too: whoever has an API key can count, but not guess what names the holder.
for back = 1, tonumber(ARGV[#ARGV]) do
  local held = redis.call('HMGET', KEYS[#KEYS - back + 1], 'fence', 'token')
  local now = (held[1] or '') .. ' ' .. (held[2] or '')
  if now ~= ARGV[#ARGV - back] then return {'fenced'} end
end

-- Fencing check: reject a process that lost its lease, since another one may have gone
-- on. script.py inserts this after the prelude of a fenced script if there are leases
-- to compare. Their keys are the last ones. The last arguments are the required fence
-- and token of each lease (a single blank: it must be free), and the number of leases.
-- The token is compared because holders of an API key can count, but not guess a token.
for back = 1, tonumber(ARGV[#ARGV]) do
  local held = redis.call('HMGET', KEYS[#KEYS - back + 1], 'fence', 'token')
  local now = (held[1] or '') .. ' ' .. (held[2] or '')
  if now ~= ARGV[#ARGV - back] then return {'fenced'} end
end

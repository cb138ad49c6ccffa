#!lua
-- Take messages whose time has come; until the lease ends nobody else takes them.
-- KEYS[1] messages  hash  sealed messages by id
-- KEYS[2] due       zset  ids of those to send, by when
-- ARGV[1] most      int   how many to take, some hundreds at most
-- ARGV[2] lease_ms  int   for how long
-- Returns:
--   {"taken", now_ms, next_ms, id, message, id, message, ...}  next_ms: how long until
--     the next one is due; -1 where there is none
local now = now_ms()
local found = {}
for _, id in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now, 'LIMIT', 0, ARGV[1])) do
  local message = redis.call('HGET', KEYS[1], id)
  if message then
    redis.call('ZADD', KEYS[2], now + ARGV[2], id)
    found[#found + 1] = id
    found[#found + 1] = message
  else
    redis.call('ZREM', KEYS[2], id)
  end
end
local first = redis.call('ZRANGE', KEYS[2], 0, 0, 'WITHSCORES')
local next_ms = first[2] and math.max(0, tonumber(first[2]) - now) or -1
return {'taken', now, next_ms, unpack(found)}

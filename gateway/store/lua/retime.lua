#!lua
-- Write that an approval has more time, or who is on it, if nothing moved since.
-- KEYS[1] head     hash    small fields of the approval
-- KEYS[2] blobs    hash    large fields of the approval
-- KEYS[3] expiry   zset    deadlines of the shard
-- KEYS[4] timers   zset    timers of the shard
-- KEYS[5] outbox   stream  events
-- KEYS[6] audit    stream  audit log
-- KEYS[7] waiting  zset    the agent's pending items
-- ARGV[1] id       text    the approval
-- ARGV[2] rev      int     what was read
-- ARGV[3] expires  int     the deadline from now on, Unix milliseconds
-- ARGV[4] taken    json    who is on it, or empty
-- ARGV[5] rings    json    rows of {kind, at_ms}: timers to set
-- ARGV[6] event    json    the event text
-- ARGV[7] keep_ms  int     lifetime of what has ended, milliseconds
-- Returns:
--   {"done"}
--   {"gone"}     no such approval
--   {"expired"}  the deadline has passed by this server's clock
--   {"moved"}    another rev: read again
local rev = redis.call('HGET', KEYS[1], 'rev')
if not rev then return {'gone'} end
local now = now_ms()
if now >= tonumber(redis.call('HGET', KEYS[1], 'expires')) then return {'expired'} end
if rev ~= ARGV[2] then return {'moved'} end

redis.call('HSET', KEYS[1], 'rev', tonumber(rev) + 1, 'expires', ARGV[3])
if ARGV[4] ~= '' then redis.call('HSET', KEYS[2], 'taken', ARGV[4]) end
retain(KEYS[1], KEYS[2])
for i = 0, tonumber(redis.call('HGET', KEYS[1], 'n')) - 1 do
  redis.call('ZADD', KEYS[7], 'XX', ARGV[3], ARGV[1] .. '.' .. i)
  if redis.call('HGET', KEYS[1], i .. ':s') == 'pending' then
    settle(KEYS[2], i, 'pending', now, ARGV[3] + ARGV[7])
  end
end
until_last(KEYS[7])
for _, ring in ipairs(cjson.decode(ARGV[5])) do
  redis.call('ZADD', KEYS[4], ring[2], ARGV[1] .. ' ' .. ring[1])
end
reindex(KEYS[1], KEYS[3], ARGV[1], now)
announce(KEYS[5], KEYS[6], cjson.encode({ARGV[6]}), now)
return {'done'}

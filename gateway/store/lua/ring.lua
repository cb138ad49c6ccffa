#!lua
-- Ring one timer of an approval, once: remind people, call others, or let go.
-- KEYS[1] head    hash    small fields of the approval
-- KEYS[2] blobs   hash    large fields of the approval
-- KEYS[3] timers  zset    timers of the shard
-- KEYS[4] outbox  stream  events
-- KEYS[5] audit   stream  audit log
-- ARGV[1] id      text    the approval
-- ARGV[2] kind    text    remind, escalate, doubt, or release of who said "I'm on it"
-- ARGV[3] event   json    the event text
-- Returns:
--   {"rung"}
--   {"silent"}  another replica was faster, or it is not time yet
--   {"over"}    nobody is waited for any more
local timer = ARGV[1] .. ' ' .. ARGV[2]
local due = redis.call('ZSCORE', KEYS[3], timer)
local now = now_ms()
if not due or now < tonumber(due) then return {'silent'} end

redis.call('ZREM', KEYS[3], timer)
local is_doubt = ARGV[2] == 'doubt'
local awaited = is_doubt and 'in_doubt' or 'pending'
local is_waiting = false
for i = 0, tonumber(redis.call('HGET', KEYS[1], 'n') or '0') - 1 do
  if redis.call('HGET', KEYS[1], i .. ':s') == awaited then is_waiting = true end
end
if not is_waiting then return {'over'} end
if not is_doubt and now >= tonumber(redis.call('HGET', KEYS[1], 'expires')) then
  return {'over'}
end
if is_doubt then
  remind_of_doubt(KEYS[1], now + 7 * DAY)
elseif ARGV[2] == 'release' then
  redis.call('HDEL', KEYS[2], 'taken')
else
  redis.call('HSET', KEYS[1], ARGV[2] == 'remind' and 'reminded' or 'escalated', now)
end
redis.call('HINCRBY', KEYS[1], 'rev', 1)
announce(KEYS[4], KEYS[5], cjson.encode({ARGV[3]}), now)
return {'rung'}

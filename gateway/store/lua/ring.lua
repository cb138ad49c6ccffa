#!lua
-- Ring one timer of an approval, once: remind people, or call others.
-- KEYS[1] head    hash    small fields of the approval
-- KEYS[2] timers  zset    timers of the shard
-- KEYS[3] outbox  stream  events
-- KEYS[4] audit   stream  audit log
-- ARGV[1] id      text    the approval
-- ARGV[2] kind    text    remind, or escalate, which the card shows
-- ARGV[3] event   json    the event text
-- Returns:
--   {"rung"}
--   {"silent"}  another replica was faster, or it is not time yet
--   {"over"}    nobody is waited for any more
local timer = ARGV[1] .. ' ' .. ARGV[2]
local due = redis.call('ZSCORE', KEYS[2], timer)
local now = now_ms()
if not due or now < tonumber(due) then return {'silent'} end

redis.call('ZREM', KEYS[2], timer)
local is_waiting = false
for i = 0, tonumber(redis.call('HGET', KEYS[1], 'n') or '0') - 1 do
  if redis.call('HGET', KEYS[1], i .. ':s') == 'pending' then is_waiting = true end
end
if not is_waiting or now >= tonumber(redis.call('HGET', KEYS[1], 'expires')) then
  return {'over'}
end
if ARGV[2] == 'escalate' then
  redis.call('HSET', KEYS[1], 'escalated', now)
  redis.call('HINCRBY', KEYS[1], 'rev', 1)
end
announce(KEYS[3], KEYS[4], cjson.encode({ARGV[3]}), now)
return {'rung'}

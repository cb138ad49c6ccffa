#!lua
-- Record that an auto-approved call failed; idempotent.
-- KEYS[1] failures zset    the agent's failed executions
-- KEYS[2] outbox   stream  events
-- KEYS[3] audit    stream  audit log
-- ARGV[1] failed   text    name of the failure, the same for the same call
-- ARGV[2] failed_ms int    how long it counts, milliseconds
-- ARGV[3] events   json    array of event texts
-- Returns:
--   {"done"}
--   {"same"}  it was written before
local now = now_ms()
if redis.call('ZSCORE', KEYS[1], ARGV[1]) then return {'same'} end

-- The script that adds a failure removes those that count no more: no sweep looks here.
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
redis.call('ZADD', KEYS[1], now + tonumber(ARGV[2]), ARGV[1])
redis.call('PEXPIRE', KEYS[1], ARGV[2])
announce(KEYS[2], KEYS[3], ARGV[3], now)
return {'done'}

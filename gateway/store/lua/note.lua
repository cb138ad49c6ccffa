#!lua
-- Write down one thing about a notice; the same again changes nothing.
-- KEYS[1] notice   hash    the notice
-- KEYS[2] outbox   stream  events
-- KEYS[3] audit    stream  audit log
-- KEYS[4] failures zset    the agent's failed executions
-- ARGV[1] field    text    what it is about: a call's index, or who reports
-- ARGV[2] body     json    what is written
-- ARGV[3] once     int     1 when the first word stands, 0 when the newest does
-- ARGV[4] keep_ms  int     lifetime from now on, milliseconds
-- ARGV[5] events   json    array of event texts
-- ARGV[6] failed   text    name of a failure that counts; empty when it is none
-- ARGV[7] failed_ms int    how long it counts, milliseconds
-- Returns:
--   {"done"}
--   {"same"}  it was written before
--   {"gone"}  no such notice
if redis.call('EXISTS', KEYS[1]) == 0 then return {'gone'} end
local known = redis.call('HGET', KEYS[1], ARGV[1])
if known and (ARGV[3] == '1' or known == ARGV[2]) then return {'same'} end

local now = now_ms()
redis.call('HSET', KEYS[1], 'format', FORMAT, ARGV[1], ARGV[2], ARGV[1] .. ':at', now)
redis.call('HINCRBY', KEYS[1], 'rev', 1)
live_on({KEYS[1], unpack(attached(KEYS[1]))}, ARGV[4])
if ARGV[6] ~= '' then
  redis.call('ZREMRANGEBYSCORE', KEYS[4], '-inf', now)
  redis.call('ZADD', KEYS[4], now + tonumber(ARGV[7]), ARGV[6])
  redis.call('PEXPIRE', KEYS[4], ARGV[7])
end
announce(KEYS[2], KEYS[3], ARGV[5], now)
return {'done'}

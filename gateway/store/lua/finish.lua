#!lua
-- Record what an execution came to, or give its claim back unused.
-- KEYS[1] head    hash    small fields of the approval
-- KEYS[2] blobs   hash    large fields of the approval
-- KEYS[3] expiry  zset    deadlines of the shard
-- KEYS[4] outbox  stream  events
-- KEYS[5] audit   stream  audit log
-- KEYS[6] failures zset   the agent's failed executions
-- ARGV[1] id      text    the approval
-- ARGV[2] index   int     the item
-- ARGV[3] fence   int     the claim's fence
-- ARGV[4] state   text    executed, failed, in_doubt for a failure that people are
--                         asked about, or authorized to give the claim back
-- ARGV[5] result  json    the result, or empty when given back
-- ARGV[6] keep_ms int     lifetime of what has ended, milliseconds
-- ARGV[7] events  json    array of event texts
-- ARGV[8] failed_ms int   how long a failure counts, milliseconds
-- ARGV[9] lapse_ms int    how long a claim that is given back may wait, milliseconds
-- ARGV[10] late   json    array of event texts: reported after people settled its doubt
-- Returns:
--   {"done"}
--   {"late"}         people had settled its doubt; what it reports is kept beside that
--   {"lost", state}  the claim is another's by now, or the item has ended
--   {"gone"}         no such approval
local i = ARGV[2]
local state = redis.call('HGET', KEYS[1], i .. ':s')
if not state then return {'gone'} end
local owned = redis.call('HGET', KEYS[1], i .. ':f') == ARGV[3]
-- An owner that was thought dead and comes back with the truth ends the doubt.
local open = state == 'executing' or (state == 'in_doubt' and ARGV[4] ~= 'authorized')
local late = ARGV[4] ~= 'authorized'
  and redis.call('HGET', KEYS[1], i .. ':k') == ARGV[3]
local now = now_ms()
if late then
  -- The first report counts, and the same one again changes nothing.
  if redis.call('HSETNX', KEYS[2], i .. ':late', ARGV[5]) == 0 then return {'late'} end
  redis.call('HINCRBY', KEYS[1], 'rev', 1)
  announce(KEYS[4], KEYS[5], ARGV[10], now)
  retain(KEYS[1], KEYS[2], ARGV[6])
  -- What was to run again, and has not begun to, has ended by this; what was left
  -- alone did run.
  open = state == 'authorized' or (state == 'failed' and ARGV[4] == 'executed')
  if not (owned and open) then return {'late'} end
elseif owned and state == ARGV[4]
  and (state ~= 'in_doubt' or redis.call('HEXISTS', KEYS[2], i .. ':r') == 1) then
  return {'done'}
elseif not (owned and open) then
  return {'lost', state}
end

redis.call('HSET', KEYS[1], i .. ':s', ARGV[4], i .. ':t', now)
redis.call('HDEL', KEYS[1], i .. ':u', i .. ':o')
if ARGV[4] == 'in_doubt' then
  remind_of_doubt(KEYS[1], now + DAY)
elseif ARGV[4] == 'authorized' then
  -- Something inside it asks, which may take longer than an unused authorization may.
  redis.call('HSET', KEYS[1], i .. ':l', now + tonumber(ARGV[9]))
end
redis.call('HINCRBY', KEYS[1], 'rev', 1)
if ARGV[5] ~= '' then
  redis.call('HSET', KEYS[2], i .. ':r', ARGV[5])
end
reindex(KEYS[1], KEYS[3], ARGV[1], now)
retain(KEYS[1], KEYS[2], ARGV[6])
settle(KEYS[2], i, ARGV[4], now)
if ARGV[4] == 'failed' or ARGV[4] == 'in_doubt' then
  redis.call('ZREMRANGEBYSCORE', KEYS[6], '-inf', now)
  redis.call('ZADD', KEYS[6], now + tonumber(ARGV[8]), ARGV[1] .. '.' .. i)
  redis.call('PEXPIRE', KEYS[6], ARGV[8])
end
announce(KEYS[4], KEYS[5], ARGV[7], now)
return {late and 'late' or 'done'}

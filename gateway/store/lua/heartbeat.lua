#!lua
-- Keep a claim alive while its owner works.
-- include records.lua
-- KEYS[1] head     hash  small fields of the approval
-- KEYS[2] expiry   zset  deadlines of the tenant
-- ARGV[1] id       text  the approval
-- ARGV[2] index    int   the item
-- ARGV[3] fence    int   the claim's fence
-- ARGV[4] lease_ms int   life from now on, milliseconds
-- Returns:
--   {"kept", until}  the claim stands until then, Unix milliseconds
--   {"lost"}  another owner has the claim now, or the item has ended
local i = ARGV[2]
-- The fence as well as the state: an owner that was paused must not keep alive the
-- claim of the one that took over.
if redis.call('HGET', KEYS[1], i .. ':s') ~= 'executing'
  or redis.call('HGET', KEYS[1], i .. ':f') ~= ARGV[3] then
  return {'lost'}
end
local now = now_ms()
local ends = now + tonumber(ARGV[4])
-- Without a new rev: what people and the agent see does not change by it, and a
-- decision beside it need not be computed again. change.lua compares this field itself.
redis.call('HSET', KEYS[1], i .. ':u', ends)
reindex(KEYS[1], KEYS[2], ARGV[1], now)
return {'kept', ends}

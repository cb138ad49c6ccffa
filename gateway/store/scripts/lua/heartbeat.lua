#!lua
-- Renew a claim while its owner works.
-- include records.lua
-- KEYS[1] head     hash  the head of the approval
-- KEYS[2] expiry   zset  deadlines of the tenant
-- ARGV[1] id       text  the approval
-- ARGV[2] index    int   the item
-- ARGV[3] fence    int   the claim's fence
-- ARGV[4] lease_ms int   new lifetime, milliseconds
-- Returns:
--   {"kept", until}  the new end of the claim, Unix milliseconds
--   {"lost"}  another owner has the claim now, or the item has ended
local i = ARGV[2]
local state = redis.call('HGET', KEYS[1], i .. ':s')
-- The fence is compared, too: a paused owner must not renew its successor's claim.
if (state ~= 'executing' and state ~= 'handing_over')
  or redis.call('HGET', KEYS[1], i .. ':f') ~= ARGV[3] then
  return {'lost'}
end
local now = now_ms()
local ends = now + tonumber(ARGV[4])
-- The revision stays: the content for people and the agent does not change, and
-- concurrent decisions need not be computed again. change.lua compares this field
-- itself.
redis.call('HSET', KEYS[1], i .. ':u', ends)
reindex(KEYS[1], KEYS[2], ARGV[1], now)
return {'kept', ends}

#!lua
-- Write one reviewer's decision on one item, if nothing moved since it was read.
-- KEYS[1] head       hash    small fields of the approval
-- KEYS[2] blobs      hash    large fields of the approval
-- KEYS[3] expiry     zset    deadlines of the shard
-- KEYS[4] outbox     stream  events
-- KEYS[5] audit      stream  audit log
-- KEYS[6] jobs       stream  resume jobs
-- ARGV[1] id         text    the approval
-- ARGV[2] index      int     the item
-- ARGV[3] rev        int     what was read
-- ARGV[4] state_seen text    pending, or in_doubt for a reconciliation
-- ARGV[5] hash_seen  bytes   32 raw bytes of the action hash that was seen
-- ARGV[6] version    int     the version from now on
-- ARGV[7] state      text    the item's state from now on
-- ARGV[8] hash       bytes   32 raw bytes of the action hash from now on
-- ARGV[9] detail     json    the item's large fields from now on
-- ARGV[10] lapse_ms  int     how long an authorization may wait, milliseconds
-- ARGV[11] keep_ms   int     lifetime from now on, milliseconds
-- ARGV[12] events    json    array of event texts
-- ARGV[13] job       json    the resume job, or empty
-- Returns:
--   {"done", now_ms}
--   {"gone"}     no such approval
--   {"expired"}  the deadline has passed by this server's clock
--   {"moved"}    another rev, state or hash: read again and decide again
local rev = redis.call('HGET', KEYS[1], 'rev')
if not rev then return {'gone'} end
local i = ARGV[2]
local now = now_ms()
local state = redis.call('HGET', KEYS[1], i .. ':s')
if state == 'pending' and now >= tonumber(redis.call('HGET', KEYS[1], 'expires')) then
  return {'expired'}
end
if rev ~= ARGV[3] or state ~= ARGV[4]
  or redis.call('HGET', KEYS[1], i .. ':h') ~= ARGV[5] then
  return {'moved'}
end

redis.call('HSET', KEYS[1], 'rev', tonumber(rev) + 1, 'version', ARGV[6],
  i .. ':s', ARGV[7], i .. ':h', ARGV[8])
if state ~= ARGV[7] then
  redis.call('HSET', KEYS[1], i .. ':t', now)
end
if ARGV[7] == 'authorized' then
  redis.call('HSET', KEYS[1], i .. ':l', now + tonumber(ARGV[10]))
end
redis.call('HSET', KEYS[2], i .. ':d', ARGV[9])
redis.call('PEXPIRE', KEYS[1], ARGV[11])
redis.call('PEXPIRE', KEYS[2], ARGV[11])
reindex(KEYS[1], KEYS[3], ARGV[1], now)
announce(KEYS[4], KEYS[5], ARGV[12], now)
enqueue(KEYS[6], ARGV[13])
return {'done', now}

#!lua
-- End what is overdue in one approval: pending items expire, unused authorizations
-- lapse, and executions whose owner fell silent are in doubt.
-- KEYS[1] head    hash    small fields of the approval
-- KEYS[2] blobs   hash    large fields of the approval
-- KEYS[3] expiry  zset    deadlines of the shard
-- KEYS[4] outbox  stream  events
-- KEYS[5] audit   stream  audit log
-- KEYS[6] jobs    stream  resume jobs
-- KEYS[7] waiting zset    the agent's pending items
-- ARGV[1] id      text    the approval
-- ARGV[2] rev     int     what was read
-- ARGV[3] expired json    {index as text: event text} for items that may expire
-- ARGV[4] lapsed  json    {index as text: event text} for items that may lapse
-- ARGV[5] doubted json    {index as text: event text} for items that may be in doubt
-- ARGV[6] job     json    the resume job
-- ARGV[7] keep_ms int     lifetime of what has ended, milliseconds
-- Returns:
--   {"done", count}  items that ended; 0 when nothing was overdue
--   {"gone"}         no such approval
--   {"moved"}        another rev: read again
local rev = redis.call('HGET', KEYS[1], 'rev')
if not rev then
  redis.call('ZREM', KEYS[3], ARGV[1])
  return {'gone'}
end
if rev ~= ARGV[2] then return {'moved'} end

local now = now_ms()
local events = {}
if now >= tonumber(redis.call('HGET', KEYS[1], 'expires')) then
  for i, event in pairs(cjson.decode(ARGV[3])) do
    if redis.call('HGET', KEYS[1], i .. ':s') == 'pending' then
      redis.call('HSET', KEYS[1], i .. ':s', 'expired', i .. ':t', now)
      redis.call('ZREM', KEYS[7], ARGV[1] .. '.' .. i)
      settle(KEYS[2], i, 'expired', now)
      events[#events + 1] = event
    end
  end
end
for i, event in pairs(cjson.decode(ARGV[4])) do
  local lapse = tonumber(redis.call('HGET', KEYS[1], i .. ':l') or '0')
  if redis.call('HGET', KEYS[1], i .. ':s') == 'authorized' and lapse > 0
    and now >= lapse then
    redis.call('HSET', KEYS[1], i .. ':s', 'lapsed', i .. ':t', now)
    settle(KEYS[2], i, 'lapsed', now)
    events[#events + 1] = event
  end
end
for i, event in pairs(cjson.decode(ARGV[5])) do
  local ends = tonumber(redis.call('HGET', KEYS[1], i .. ':u') or '0')
  if redis.call('HGET', KEYS[1], i .. ':s') == 'executing' and now >= ends then
    redis.call('HSET', KEYS[1], i .. ':s', 'in_doubt', i .. ':t', now)
    remind_of_doubt(KEYS[1], now + DAY)
    events[#events + 1] = event
  end
end
if #events == 0 then
  reindex(KEYS[1], KEYS[3], ARGV[1], now)
  return {'done', 0}
end
redis.call('HINCRBY', KEYS[1], 'rev', 1)
reindex(KEYS[1], KEYS[3], ARGV[1], now)
retain(KEYS[1], KEYS[2], ARGV[7])
announce(KEYS[4], KEYS[5], cjson.encode(events), now)
enqueue(KEYS[6], ARGV[6])
return {'done', #events}

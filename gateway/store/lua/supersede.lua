#!lua
-- End the waiting items of one approval without a decision: the thread moved on.
-- KEYS[1] head    hash    small fields of the approval
-- KEYS[2] blobs   hash    large fields of the approval
-- KEYS[3] expiry  zset    deadlines of the shard
-- KEYS[4] outbox  stream  events
-- KEYS[5] audit   stream  audit log
-- KEYS[6] waiting zset    the agent's pending items
-- ARGV[1] id      text    the approval
-- ARGV[2] rev     int     what was read
-- ARGV[3] ends    json    {index as text: [state from now on, event text]}
-- ARGV[4] keep_ms int     lifetime of what has ended, milliseconds
-- Returns:
--   {"done", count}  items that ended; one that is neither pending nor authorized stays
--   {"gone"}         no such approval
--   {"moved"}        another rev: read again
local rev = redis.call('HGET', KEYS[1], 'rev')
if not rev then return {'gone'} end
if rev ~= ARGV[2] then return {'moved'} end

local now = now_ms()
local events = {}
for i, ending in pairs(cjson.decode(ARGV[3])) do
  local state = redis.call('HGET', KEYS[1], i .. ':s')
  if state == 'pending' or state == 'authorized' then
    redis.call('HSET', KEYS[1], i .. ':s', ending[1], i .. ':t', now)
    redis.call('ZREM', KEYS[6], ARGV[1] .. '.' .. i)
    settle(KEYS[2], i, ending[1], now)
    events[#events + 1] = ending[2]
  end
end
if #events == 0 then return {'done', 0} end
redis.call('HINCRBY', KEYS[1], 'rev', 1)
reindex(KEYS[1], KEYS[3], ARGV[1], now)
retain(KEYS[1], KEYS[2], ARGV[4])
announce(KEYS[4], KEYS[5], cjson.encode(events), now)
return {'done', #events}

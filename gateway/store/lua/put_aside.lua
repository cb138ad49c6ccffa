#!lua
-- Put an approval aside that nobody can read: nothing in it will be decided or run, no
-- clock asks for it again, and whoever waits for it is told.
-- KEYS[1] head    hash    small fields of the approval
-- KEYS[2] expiry  zset    deadlines of the shard
-- KEYS[3] timers  zset    timers of the shard
-- KEYS[4] outbox  stream  events
-- KEYS[5] audit   stream  audit log
-- KEYS[6] jobs    stream  resume jobs
-- KEYS[7] blobs   hash    large fields of the approval
-- KEYS[8] waiting zset    the agent's pending items
-- ARGV[1] id      text    the approval
-- ARGV[2] kinds   json    [kind of timer, ...]
-- ARGV[3] event   json    the event text
-- ARGV[4] job     json    the resume job; "" when nobody knows whose it is
-- ARGV[5] keep_ms int     lifetime of what has ended, milliseconds
-- Returns:
--   {"done"}
--   {"silent"}  another replica was faster
local is_due = redis.call('ZREM', KEYS[2], ARGV[1]) == 1
for _, kind in ipairs(cjson.decode(ARGV[2])) do
  is_due = redis.call('ZREM', KEYS[3], ARGV[1] .. ' ' .. kind) == 1 or is_due
end
if not is_due then return {'silent'} end

local now = now_ms()
for i = 0, (tonumber(redis.call('HGET', KEYS[1], 'n')) or 0) - 1 do
  local state = redis.call('HGET', KEYS[1], i .. ':s')
  if state == 'pending' or state == 'authorized' then
    redis.call('HSET', KEYS[1], i .. ':s', 'withdrawn', i .. ':t', now)
    redis.call('ZREM', KEYS[8], ARGV[1] .. '.' .. i)
    -- What it uses may be what cannot be read: then it counts until it is forgotten.
    pcall(settle, KEYS[7], i, 'withdrawn', now)
  elseif not state then
    break
  end
end
retain(KEYS[1], KEYS[7], ARGV[5])
announce(KEYS[4], KEYS[5], cjson.encode({ARGV[3]}), now)
enqueue(KEYS[6], ARGV[4])
return {'done'}

#!lua
-- Move jobs that are due from the retry set into the stream.
-- KEYS[1] retry  zset    jobs by when they are due
-- KEYS[2] jobs   stream  jobs to do now
-- ARGV[1] limit  int     most jobs that are moved
-- Returns:
--   {"moved", how_many}
local due = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now_ms(), 'LIMIT', 0, ARGV[1])
for _, job in ipairs(due) do
  redis.call('ZREM', KEYS[1], job)
  enqueue(KEYS[2], job)
end
return {'moved', #due}

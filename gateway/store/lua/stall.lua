#!lua
-- Replace the record of a failed run, with its jobs and events, atomically.
-- KEYS[1] runs     hash    failed runs, by id
-- KEYS[2] waiting  zset    ids of runs that are retried, by their first failure
-- KEYS[3] parked   zset    ids of parked runs, by the time of parking
-- KEYS[4] dropped  string  mark of a run that is no longer advanced
-- KEYS[5] facts    hash    facts of the thread
-- KEYS[6] retry    zset    jobs by due time
-- KEYS[7] jobs     stream  jobs to do now
-- KEYS[8] outbox   stream  events
-- KEYS[9] audit    stream  audit log
-- ARGV[1]  id        text  the run
-- ARGV[2]  before    text  the record that was read; "" for none
-- ARGV[3]  after     json  the new record; "" for none
-- ARGV[4]  state     text  waiting, parked, dropped, or "" for none of them
-- ARGV[5]  at_ms     int   start of that state
-- ARGV[6]  group     text  the consumer group of the jobs
-- ARGV[7]  delivery  text  the finished job; "" for none
-- ARGV[8]  undone    json  jobs (texts) whose retries are cancelled
-- ARGV[9]  again     json  jobs (texts) to queue
-- ARGV[10] delay_ms  int   their delay, milliseconds; 0 for now
-- ARGV[11] keep_ms   int   lifetime of the mark of a dropped run, milliseconds
-- ARGV[12] forgotten text  field of the facts to delete; "" for none
-- ARGV[13] events    json  events
-- Returns:
--   {"kept"}
--   {"moved"}  the record has changed: read it again
--   {"gone"}   another worker has put the job back or finished it
if (redis.call('HGET', KEYS[1], ARGV[1]) or '') ~= ARGV[2] then return {'moved'} end
if ARGV[7] ~= '' then
  local is_ours = redis.call('XACK', KEYS[7], ARGV[6], ARGV[7]) == 1
  -- Without jobs to queue, a repeated acknowledgement is harmless.
  if not is_ours and ARGV[9] ~= '[]' then return {'gone'} end
  redis.call('XDEL', KEYS[7], ARGV[7])
end

local now = now_ms()
if ARGV[3] == '' then
  redis.call('HDEL', KEYS[1], ARGV[1])
else
  redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
end
-- From both lists: the caller need not know which one it is in.
redis.call('ZREM', KEYS[2], ARGV[1])
redis.call('ZREM', KEYS[3], ARGV[1])
if ARGV[4] == 'waiting' then redis.call('ZADD', KEYS[2], ARGV[5], ARGV[1]) end
if ARGV[4] == 'parked' then redis.call('ZADD', KEYS[3], ARGV[5], ARGV[1]) end
if ARGV[4] == 'dropped' then redis.call('SET', KEYS[4], '1', 'PX', ARGV[11]) end
for _, job in ipairs(cjson.decode(ARGV[8])) do
  redis.call('ZREM', KEYS[6], job)
end
for _, job in ipairs(cjson.decode(ARGV[9])) do
  if ARGV[10] == '0' then
    -- All resume jobs of a thread have the same text, so this cancels a later one, too.
    redis.call('ZREM', KEYS[6], job)
    enqueue(KEYS[7], job)
  else
    redis.call('ZADD', KEYS[6], now + ARGV[10], job)
  end
end
if ARGV[12] ~= '' then redis.call('HDEL', KEYS[5], ARGV[12]) end
announce(KEYS[8], KEYS[9], ARGV[13], now)
return {'kept'}

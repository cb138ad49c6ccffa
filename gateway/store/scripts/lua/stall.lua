#!lua
-- Replace the record of a failed run, with its jobs and events, atomically.
-- KEYS[1] runs     hash    failed runs, by id
-- KEYS[2] dropped  string  mark of a run that is no longer advanced
-- KEYS[3] facts    hash    facts of the thread
-- KEYS[4] retry    zset    jobs by due time
-- KEYS[5] jobs     stream  jobs to do now
-- KEYS[6] outbox   stream  events
-- KEYS[7] audit    stream  audit log
-- ARGV[1]  id        text  the run
-- ARGV[2]  before    text  the record that was read; "" for none
-- ARGV[3]  after     json  the new record; "" for none
-- ARGV[4]  is_dropped int  1 if the run is no longer advanced; else 0
-- ARGV[5]  group     text  the consumer group of the jobs
-- ARGV[6]  delivery  text  the finished job; "" for none
-- ARGV[7]  undone    json  jobs (texts) whose retries are cancelled
-- ARGV[8]  again     json  jobs (texts) to queue
-- ARGV[9]  delay_ms  int   their delay, milliseconds; 0 for now
-- ARGV[10] keep_ms   int   lifetime of the mark of a dropped run, milliseconds
-- ARGV[11] forgotten text  field of the facts to delete; "" for none
-- ARGV[12] events    json  events
-- Returns:
--   {"kept"}
--   {"moved"}  the record has changed: read it again
--   {"gone"}   another worker has put the job back or finished it
if (redis.call('HGET', KEYS[1], ARGV[1]) or '') ~= ARGV[2] then return {'moved'} end
if ARGV[6] ~= '' then
  local is_ours = redis.call('XACK', KEYS[5], ARGV[5], ARGV[6]) == 1
  -- Without jobs to queue, a repeated acknowledgement is harmless.
  if not is_ours and ARGV[8] ~= '[]' then return {'gone'} end
  redis.call('XDEL', KEYS[5], ARGV[6])
end

local now = now_ms()
if ARGV[3] == '' then
  redis.call('HDEL', KEYS[1], ARGV[1])
else
  redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
end
if ARGV[4] == '1' then redis.call('SET', KEYS[2], '1', 'PX', ARGV[10]) end
for _, job in ipairs(cjson.decode(ARGV[7])) do
  redis.call('ZREM', KEYS[4], job)
end
for _, job in ipairs(cjson.decode(ARGV[8])) do
  if ARGV[9] == '0' then
    -- All resume jobs of a thread have the same text, so this cancels a later one, too.
    redis.call('ZREM', KEYS[4], job)
    enqueue(KEYS[5], job)
  else
    redis.call('ZADD', KEYS[4], now + ARGV[9], job)
  end
end
if ARGV[11] ~= '' then redis.call('HDEL', KEYS[3], ARGV[11]) end
announce(KEYS[6], KEYS[7], ARGV[12], now)
return {'kept'}

#!lua
-- Requeue a job for later, unless another worker has finished or rescheduled it.
-- KEYS[1] jobs      stream  jobs to do now
-- KEYS[2] retry     zset    jobs by due time
-- ARGV[1] group     text    the consumer group of the jobs
-- ARGV[2] delivery  text    id of the job in the stream
-- ARGV[3] job       json    the remaining job
-- ARGV[4] delay_ms  int     delay, milliseconds
-- Returns:
--   {"kept"}
--   {"gone"}  another worker has put it back or finished it
if redis.call('XACK', KEYS[1], ARGV[1], ARGV[2]) == 0 then return {'gone'} end
-- XACK alone leaves the entry in the stream, which is never trimmed.
redis.call('XDEL', KEYS[1], ARGV[2])
redis.call('ZADD', KEYS[2], now_ms() + tonumber(ARGV[4]), ARGV[3])
return {'kept'}

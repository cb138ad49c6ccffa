#!lua
-- Requeue a job for later, unless another worker has finished or rescheduled it.
-- KEYS[1] jobs      stream  jobs to do now
-- KEYS[2] retry     zset    jobs by when they are due
-- ARGV[1] group     text    who reads the jobs
-- ARGV[2] delivery  text    id of the job in the stream
-- ARGV[3] job       json    what is left to do of it
-- ARGV[4] delay_ms  int     after how long, milliseconds
-- Returns:
--   {"kept"}
--   {"gone"}  somebody else put it back, or is done with it
if redis.call('XACK', KEYS[1], ARGV[1], ARGV[2]) == 0 then return {'gone'} end
-- XACK alone leaves the entry in the stream, which has no other end.
redis.call('XDEL', KEYS[1], ARGV[2])
redis.call('ZADD', KEYS[2], now_ms() + tonumber(ARGV[4]), ARGV[3])
return {'kept'}

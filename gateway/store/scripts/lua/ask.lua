#!lua
-- Store a person's message to an agent once: the thread's facts, and the start job.
-- include lifetimes.lua
-- KEYS[1] seen   string  mark of this message
-- KEYS[2] facts  hash    facts of the thread
-- KEYS[3] jobs   stream  resume jobs
-- ARGV[1] before    text  the facts that were read; "" for none
-- ARGV[2] after     json  the new facts
-- ARGV[3] job       json  the job
-- ARGV[4] seen_ms   int   how long the message is remembered, milliseconds
-- Returns:
--   {"kept"}
--   {"seen"}   this message was stored before
--   {"moved"}  the facts have changed: read them again
if redis.call('EXISTS', KEYS[1]) == 1 then return {'seen'} end
if (redis.call('HGET', KEYS[2], 'facts') or '') ~= ARGV[1] then return {'moved'} end

-- After the comparison: a rejected message must count as new when it is repeated.
redis.call('SET', KEYS[1], '1', 'PX', ARGV[4])
begin_run(KEYS[2])
redis.call('HSET', KEYS[2], 'facts', ARGV[2])
enqueue(KEYS[3], ARGV[3])
return {'kept'}

#!lua
-- Store a person's message to an agent idempotently: who asked, and the start job.
-- include lifetimes.lua
-- KEYS[1] seen   string  mark of this message
-- KEYS[2] facts  hash    facts of the thread
-- KEYS[3] jobs   stream  resume jobs
-- ARGV[1] before    text  the facts that were read; "" for none
-- ARGV[2] after     json  the facts from now on
-- ARGV[3] job       json  the job
-- ARGV[4] seen_ms   int   how long the message is known
-- Returns:
--   {"kept"}
--   {"seen"}   this message was kept before
--   {"moved"}  somebody else asked meanwhile: read the facts again
if redis.call('EXISTS', KEYS[1]) == 1 then return {'seen'} end
if (redis.call('HGET', KEYS[2], 'facts') or '') ~= ARGV[1] then return {'moved'} end

-- After the comparison: a message that was not kept has to be new when it comes again.
redis.call('SET', KEYS[1], '1', 'PX', ARGV[4])
begin_run(KEYS[2])
redis.call('HSET', KEYS[2], 'facts', ARGV[2])
enqueue(KEYS[3], ARGV[3])
return {'kept'}

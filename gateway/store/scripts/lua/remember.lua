#!lua
-- Replace the facts of a thread if they are unchanged; for a person's message also
-- queue the start job, once for each message.
-- include lifetimes.lua
-- KEYS[1] facts    hash    facts of the thread
-- KEYS[2] seen     string  mark of the message
-- KEYS[3] jobs     stream  resume jobs
-- ARGV[1] before   text  the facts that were read; "" for none
-- ARGV[2] after    json  the new facts
-- ARGV[3] why      text  begin: a person asked; open: a run starts and has checked the
--                        past; aside: a thread inside another run
-- ARGV[4] keep_ms  int   lifetime of the facts without a run, milliseconds
-- ARGV[5] job      json  the start job of a message; "" for none
-- ARGV[6] seen_ms  int   how long the message is remembered, milliseconds
-- Returns:
--   {"kept"}
--   {"seen"}   this message was stored before
--   {"moved"}  the facts have changed: read them again
local has_job = ARGV[5] ~= ''
if has_job and redis.call('EXISTS', KEYS[2]) == 1 then return {'seen'} end
if (redis.call('HGET', KEYS[1], 'facts') or '') ~= ARGV[1] then return {'moved'} end
-- After the comparison: a rejected message must count as new when it is repeated.
if has_job then redis.call('SET', KEYS[2], '1', 'PX', ARGV[6]) end
if ARGV[3] ~= 'aside' then begin_run(KEYS[1]) end
redis.call('HSET', KEYS[1], 'facts', ARGV[2])
if ARGV[3] == 'open' then redis.call('HSET', KEYS[1], 'run', 'open') end
retain_facts(KEYS[1], ARGV[4])
enqueue(KEYS[3], ARGV[5])
return {'kept'}

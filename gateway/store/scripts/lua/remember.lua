#!lua
-- Replace the facts of a thread if they are unchanged.
-- include lifetimes.lua
-- KEYS[1] facts    hash  facts of the thread
-- ARGV[1] before   text  the facts that were read; "" for none
-- ARGV[2] after    json  the new facts
-- ARGV[3] why      text  begin: a person asked; open: a run starts and has checked the
--                        past; aside: a thread inside another run
-- ARGV[4] keep_ms  int   lifetime of the facts without a run, milliseconds
-- Returns:
--   {"kept"}
--   {"moved"}  the facts have changed: read them again
if (redis.call('HGET', KEYS[1], 'facts') or '') ~= ARGV[1] then return {'moved'} end
if ARGV[3] ~= 'aside' then begin_run(KEYS[1]) end
redis.call('HSET', KEYS[1], 'facts', ARGV[2])
if ARGV[3] == 'open' then redis.call('HSET', KEYS[1], 'run', 'open') end
retain_facts(KEYS[1], ARGV[4])
return {'kept'}

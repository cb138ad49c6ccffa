#!lua
-- Replace the facts of a thread (who asked), if they are as they were read.
-- include lifetimes.lua
-- KEYS[1] facts    hash  facts of the thread
-- ARGV[1] before   text  the facts that were read; "" for none
-- ARGV[2] after    json  the facts from now on
-- ARGV[3] why      text  begin: somebody asked; open: the thread's runner looked at its
--                        past; aside: for a thread that another run runs
-- ARGV[4] keep_ms  int   lifetime of facts that no run of the thread keeps
-- Returns:
--   {"kept"}
--   {"moved"}  somebody else changed them: read them again
if (redis.call('HGET', KEYS[1], 'facts') or '') ~= ARGV[1] then return {'moved'} end
if ARGV[3] ~= 'aside' then begin_run(KEYS[1]) end
redis.call('HSET', KEYS[1], 'facts', ARGV[2])
if ARGV[3] == 'open' then redis.call('HSET', KEYS[1], 'run', 'open') end
retain_facts(KEYS[1], ARGV[4])
return {'kept'}

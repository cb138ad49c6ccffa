#!lua
-- Change who asked in a thread, unless somebody else changed it meanwhile.
-- KEYS[1] facts    hash  facts of the thread
-- ARGV[1] before   text  the facts that were read; "" for none
-- ARGV[2] after    json  the facts from now on
-- ARGV[3] keep_ms  int   how long the facts live
-- Returns:
--   {"kept"}
--   {"moved"}  somebody else changed them: read them again
if (redis.call('HGET', KEYS[1], 'facts') or '') ~= ARGV[1] then return {'moved'} end
redis.call('HSET', KEYS[1], 'facts', ARGV[2])
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return {'kept'}

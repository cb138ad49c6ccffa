#!lua
-- End the run of a thread: its facts get a lifetime, unless something is open in it.
-- include lifetimes.lua
-- KEYS[1] facts    hash  facts of the thread
-- ARGV[1] keep_ms  int   lifetime of facts that nothing keeps
-- Returns:
--   {"ended"}
redis.call('HDEL', KEYS[1], 'run')
retain_facts(KEYS[1], ARGV[1])
return {'ended'}

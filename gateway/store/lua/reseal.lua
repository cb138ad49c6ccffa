#!lua
-- Put a text that is sealed with another key in the place of the same text.
-- KEYS[1] rows   hash  sealed texts by name
-- ARGV[1] name   text  which
-- ARGV[2] seen   text  as it was read
-- ARGV[3] row    text  from now on
-- Returns:
--   {"done"}
--   {"moved"}  it is not as it was read
if redis.call('HGET', KEYS[1], ARGV[1]) ~= ARGV[2] then return {'moved'} end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
return {'done'}

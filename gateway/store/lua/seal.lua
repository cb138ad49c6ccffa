#!lua
-- Record which entries of the audit log are in files.
-- KEYS[1] sealed  hash  where that is noted
-- ARGV[1] first   int   index of the oldest entry
-- ARGV[2] end     int   index behind the newest
-- ARGV[3] last    text  place of the newest
-- Returns:
--   {"done"}
redis.call('HSET', KEYS[1], 'first', ARGV[1], 'end', ARGV[2], 'last', ARGV[3])
return {'done'}

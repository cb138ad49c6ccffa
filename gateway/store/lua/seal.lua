#!lua
-- Note that a segment of the audit log is in a file and synced; compare and set.
-- KEYS[1] sealed  hash  how far the audit log is sealed
-- ARGV[1] number  int   the segment
-- ARGV[2] last    text  place of its last entry
-- ARGV[3] digest  text  of its header
-- Returns:
--   {"done"}
--   {"moved"}  it is not the next one: somebody else has sealed meanwhile
local number = tonumber(redis.call('HGET', KEYS[1], 'number') or '0')
if number ~= tonumber(ARGV[1]) - 1 then return {'moved'} end
redis.call('HSETNX', KEYS[1], 'first', 1)
redis.call('HSET', KEYS[1], 'number', ARGV[1], 'last', ARGV[2], 'digest', ARGV[3])
return {'done'}

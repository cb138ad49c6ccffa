#!lua
-- Note which segment of the audit log is the oldest that is kept; never an older one.
-- KEYS[1] sealed  hash  how far the audit log is sealed
-- ARGV[1] first   int   the oldest that is kept
-- Returns:
--   {"done"}
-- A sealer that was paused would otherwise bring back what another one has removed.
if tonumber(redis.call('HGET', KEYS[1], 'first') or '0') < tonumber(ARGV[1]) then
  redis.call('HSET', KEYS[1], 'first', ARGV[1])
end
return {'done'}

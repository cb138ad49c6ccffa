#!lua
-- Write what is kept of an API key, if it is as it was read, with its audit entry.
-- KEYS[1] api_keys  hash    the sealed keys of the tenant, by id
-- KEYS[2] audit     stream  audit log
-- ARGV[1] id        text    of the key
-- ARGV[2] seen      text    what was read of it, or empty where there was nothing
-- ARGV[3] body      text    what is kept from now on, or empty to forget it
-- ARGV[4] event     text    the event with its seal, or empty for none
-- ARGV[5] most      int     how many keys there may be
-- Returns:
--   {"done"}
--   {"moved"}  it is not as it was read
--   {"full"}   there are as many
local found = redis.call('HGET', KEYS[1], ARGV[1]) or ''
if found ~= ARGV[2] then return {'moved'} end
if ARGV[3] == '' then
  redis.call('HDEL', KEYS[1], ARGV[1])
else
  if found == '' and redis.call('HLEN', KEYS[1]) >= tonumber(ARGV[5]) then
    return {'full'}
  end
  redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
end
if ARGV[4] ~= '' then
  write_event(KEYS[2], ARGV[4], now_ms())
end
return {'done'}

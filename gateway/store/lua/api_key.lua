#!lua
-- Replace a stored API key if it is unchanged, and write the audit entry.
-- KEYS[1] api_keys  hash    the sealed keys of the tenant, by id
-- KEYS[2] audit     stream  audit log
-- ARGV[1] id        text    the key's id
-- ARGV[2] seen      text    the value that was read, or empty for none
-- ARGV[3] body      text    the new value, or empty to delete it
-- ARGV[4] event     text    the event with its seal, or empty for none
-- ARGV[5] most      int     limit of keys
-- Returns:
--   {"done"}
--   {"moved"}  the value has changed
--   {"full"}   the limit is reached
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

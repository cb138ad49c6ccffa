#!lua
-- Set or lift a freeze; idempotent.
-- KEYS[1] frozen    hash    what is frozen of the tenant
-- KEYS[2] outbox    stream  events
-- KEYS[3] audit     stream  audit log
-- ARGV[1] verb      text    set or lift
-- ARGV[2] names     json    array of names; the first is set, all are lifted
-- ARGV[3] body      json    the freeze, or empty to lift
-- ARGV[4] events    json    array of event texts
-- Returns:
--   {"done"}
--   {"same"}  it stood already, or there was nothing to lift
local now = now_ms()
local names = cjson.decode(ARGV[2])
local changed
if ARGV[1] == 'set' then
  -- The first freeze keeps its author and reason, which people are told.
  changed = redis.call('HSETNX', KEYS[1], names[1], ARGV[3])
else
  changed = redis.call('HDEL', KEYS[1], unpack(names))
end
if changed == 0 then return {'same'} end
announce(KEYS[2], KEYS[3], ARGV[4], now)
return {'done'}

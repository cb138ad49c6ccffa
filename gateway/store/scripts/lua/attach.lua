#!lua
-- Write fields of a hash, and give it the lifetime of its approval.
-- include lifetimes.lua
-- KEYS[1] record  hash    head of the approval
-- KEYS[2] own     hash    what belongs to it
-- KEYS[3..] texts string  texts that hold the id and live as long, too
-- ARGV[1] holder  text    the approval
-- ARGV[2] first   json    {field: text} to write unless the field is there
-- ARGV[3] newest  json    {field: text} to write
-- ARGV[4] keep_ms int     lifetime when the record is not there, milliseconds
-- Returns:
--   {"done"}
for field, body in pairs(cjson.decode(ARGV[2])) do
  redis.call('HSETNX', KEYS[2], field, body)
end
for field, body in pairs(cjson.decode(ARGV[3])) do
  redis.call('HSET', KEYS[2], field, body)
end
for index = 3, #KEYS do redis.call('SET', KEYS[index], ARGV[1]) end
live_as_long_as(KEYS[1], {unpack(KEYS, 2)}, ARGV[4])
return {'done'}

#!lua
-- Take, keep or give back the right to run one thread.
-- KEYS[1] lease  hash  token and fence of the holder
-- ARGV[1] verb   text  take, keep or free
-- ARGV[2] token  text  the holder
-- ARGV[3] ttl_ms int   life from now on, milliseconds
-- Returns:
--   {"held", fence}    it is yours
--   {"busy", left_ms}  another holds it
--   {"free"}           given back
--   {"lost"}           it was not yours to keep or give back
local holder = redis.call('HGET', KEYS[1], 'token')
if ARGV[1] == 'take' then
  if holder and holder ~= ARGV[2] then
    return {'busy', redis.call('PTTL', KEYS[1])}
  end
  local fence = redis.call('HINCRBY', KEYS[1], 'fence', 1)
  redis.call('HSET', KEYS[1], 'token', ARGV[2])
  redis.call('PEXPIRE', KEYS[1], ARGV[3])
  return {'held', fence}
end
if holder ~= ARGV[2] then return {'lost'} end
if ARGV[1] == 'keep' then
  redis.call('PEXPIRE', KEYS[1], ARGV[3])
  return {'held', tonumber(redis.call('HGET', KEYS[1], 'fence'))}
end
redis.call('DEL', KEYS[1])
return {'free'}

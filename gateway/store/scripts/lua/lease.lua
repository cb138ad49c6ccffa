#!lua
-- Acquire, renew, renumber or release the lease of one thread.
-- KEYS[1] lease  hash    token and fence of the holder
-- KEYS[2] fences string  the tenant's newest fence; every holder gets a greater one
-- ARGV[1] verb   text    take, keep, renumber or free
-- ARGV[2] token  text    the holder
-- ARGV[3] ttl_ms int     new lifetime, milliseconds
-- ARGV[4] above  int     for renumber: a fence found in a checkpoint database
-- ARGV[5] reach  int     limit of its distance from the newest fence; 0: none
-- Returns:
--   {"held", fence}    the caller holds it
--   {"busy", left_ms}  another holder has it
--   {"free"}           it was released
--   {"lost"}           the caller does not hold it
--   {"too_high"}       above is out of reach; nothing changed
local holder = redis.call('HGET', KEYS[1], 'token')
local newest = tonumber(redis.call('GET', KEYS[2]) or '0')
local function hold(above)
  -- One counter for the tenant: a separate one would restart with its lease's key, and
  -- repeat the fence of a holder that was paused for long.
  local next_one = math.max(newest, above) + 1
  if next_one >= 2 ^ 53 then
    -- Above this limit, Lua numbers have no exact successor.
    return redis.error_reply('ERR the fences of this tenant are used up')
  end
  local fence = string.format('%.0f', next_one)
  redis.call('SET', KEYS[2], fence)
  redis.call('HSET', KEYS[1], 'token', ARGV[2], 'fence', fence)
  redis.call('PEXPIRE', KEYS[1], ARGV[3])
  return {'held', fence}
end
if ARGV[1] == 'take' then
  -- The same token again: the first reply was lost.
  if holder and holder ~= ARGV[2] then
    local left = redis.call('PTTL', KEYS[1])
    if left > tonumber(ARGV[3]) then
      -- This server's clock went back: limit a dead holder's lifetime to a live one's.
      redis.call('PEXPIRE', KEYS[1], ARGV[3])
      left = tonumber(ARGV[3])
    end
    return {'busy', left}
  end
  return hold(0)
end
if holder ~= ARGV[2] then return {'lost'} end
if ARGV[1] == 'renumber' then
  local above, reach = tonumber(ARGV[4]), tonumber(ARGV[5])
  -- All agents of the tenant share the counter.
  if reach > 0 and above > newest + reach then return {'too_high'} end
  return hold(above)
end
if ARGV[1] == 'keep' then
  redis.call('PEXPIRE', KEYS[1], ARGV[3])
  return {'held', redis.call('HGET', KEYS[1], 'fence')}
end
redis.call('DEL', KEYS[1])
return {'free'}

#!lua
-- Register a process with a heartbeat; remove those whose heartbeat stopped.
-- KEYS[1] members hash  a revision, process descriptions, and places of agents' threads
-- ARGV[1] seen    text  the revision that was read; "" for any
-- ARGV[2] name    text  the field to write
-- ARGV[3] body    text  its value
-- ARGV[4] life_ms int   its lifetime, milliseconds
-- ARGV[5] agents  text  JSON object: fields of agents and their new values
-- Returns:
--   {"joined"}
--   {"moved"}   another process has joined since: read again; nothing was written
if ARGV[1] ~= '' and (redis.call('HGET', KEYS[1], 'rev') or '0') ~= ARGV[1] then
  return {'moved'}
end
local now = now_ms()
local all = redis.call('HGETALL', KEYS[1])
for i = 1, #all, 2 do
  -- Fields without a time (the revision, places of agents' threads) stay.
  local ends = string.match(all[i + 1], '^(%d+) ')
  if ends and tonumber(ends) < now then redis.call('HDEL', KEYS[1], all[i]) end
end
local ends = string.format('%.0f', now + tonumber(ARGV[4]))
redis.call('HSET', KEYS[1], ARGV[2], ends .. ' ' .. ARGV[3])
for field, value in pairs(cjson.decode(ARGV[5])) do
  redis.call('HSET', KEYS[1], field, value)
end
-- Not for a heartbeat: every joining process would have to start again.
if ARGV[1] ~= '' then redis.call('HINCRBY', KEYS[1], 'rev', 1) end
return {'joined'}

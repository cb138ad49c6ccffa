#!lua
-- Load what the evaluation of a turn needs, in one step. It reads only what is about
-- this turn: a thread may have any number of rejections, a tenant of freezes.
-- KEYS[1] turn     string  the turn's verdicts
-- KEYS[2] facts    hash    who asked in the thread
-- KEYS[3] frozen   hash    pauses of agents; the list of freezes stands beside it
-- KEYS[4] waiting  zset    the agent's pending items
-- KEYS[5] requests_10m hash    how much the agent asked people for
-- KEYS[6] failures zset    the agent's failed executions
-- KEYS[7] rejections string  how many of the agent's calls were rejected in a row
-- KEYS[8] rejected hash    what was rejected in the thread
-- KEYS[9..] precedents hash  how calls with one effect ended
-- ARGV[1] names    json    array of names of pauses
-- ARGV[2] calls    json    array of fingerprints that may have been rejected
-- ARGV[3] list     text    seal of the list of freezes that is known, in hex; "" for none
-- Returns:
--   {"load_context", now_ms, verdicts, facts, frozen, counts, rejected, precedents, list}
--     list is the list of freezes where it is another one than the known one
--     verdicts are null for a new turn
-- Return the fields of a hash that are there, each behind its name.
local function those_of(key, names)
  local found = {}
  for _, name in ipairs(names) do
    local value = redis.call('HGET', key, name)
    if value then
      found[#found + 1] = name
      found[#found + 1] = value
    end
  end
  return found
end

local now = now_ms()
local counts = {}
-- By ZCOUNT and not by ZCARD: this script only reads, and what has ended is removed by
-- the scripts that write.
for _, index in ipairs({4, 6}) do
  counts[index - 3] = redis.call('ZCOUNT', KEYS[index], '(' .. now, '+inf')
end
counts[2] = asked(KEYS[5], now)
counts[4] = tonumber(redis.call('GET', KEYS[7]) or '0')
local precedents = {}
for index = 9, #KEYS do precedents[index - 8] = redis.call('HGETALL', KEYS[index]) end
return {'load_context', now, redis.call('GET', KEYS[1]),
  redis.call('HGET', KEYS[2], 'facts') or '', those_of(KEYS[3], cjson.decode(ARGV[1])),
  counts, those_of(KEYS[8], cjson.decode(ARGV[2])), precedents,
  has_other_list(KEYS[3], ARGV[3]) and (redis.call('GET', KEYS[3] .. '_sealed') or '')}

#!lua
-- Load the inputs of a turn's evaluation in one step. Only data about this turn is
-- read: a thread may have any number of rejections, a tenant any number of freezes.
-- KEYS[1] turn     string  the turn's verdicts
-- KEYS[2] facts    hash    the facts of the thread
-- KEYS[3] frozen   hash    pauses of agents; the key of the list of freezes follows from it
-- KEYS[4] waiting  zset    the agent's pending items
-- KEYS[5] requests_10m hash    the agent's recent requests for approval
-- KEYS[6] failures zset    the agent's failed executions
-- KEYS[7] rejections string  number of the agent's consecutive rejections
-- KEYS[8] rejected hash    rejected calls of the thread
-- KEYS[9..] precedents hash  results of calls with one effect
-- ARGV[1] names    json    array of names of pauses
-- ARGV[2] calls    json    array of fingerprints whose rejections are read
-- ARGV[3] list     text    seal of the caller's list of freezes, in hex; "" for none
-- Returns:
--   {"load_context", now_ms, verdicts, facts, frozen, counts, rejected, precedents, list}
--     list is the list of freezes if its seal differs from the caller's
--     verdicts are null for a new turn
-- Return the existing fields of a hash, each after its name.
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
-- ZCOUNT instead of ZCARD: this script only reads, and only the scripts that write
-- remove expired items.
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

#!lua
-- Give one executor the right to run one authorized item once.
-- KEYS[1] head       hash    small fields of the approval
-- KEYS[2] expiry     zset    deadlines of the shard
-- KEYS[3] outbox     stream  events
-- KEYS[4] audit      stream  audit log
-- KEYS[5] frozen     hash    what is frozen of the tenant
-- ARGV[1] id         text    the approval
-- ARGV[2] index      int     the item
-- ARGV[3] hash       bytes   32 raw bytes of the action hash that would run
-- ARGV[4] owner      text    the attempt, unique
-- ARGV[5] lease_ms   int     the claim's life without a heartbeat, milliseconds
-- ARGV[6] judged     text    what the policy was asked about: "start" of an authorized
--                            item, or, of a dead owner's attempt, "repeat" or "doubt"
-- ARGV[7] started    json    array with the event of a start
-- ARGV[8] doubtful   json    array with the event of a death in between
-- ARGV[9] names      json    array of names under which nothing may be frozen
-- Returns:
--   {"new", fence}         run it now
--   {"busy", left_ms}      a live owner has it; 0: it moved since it was judged, ask again
--   {"done"}               it ran; the result is stored
--   {"in_doubt"}           its owner died; a person has to say what happened
--   {"refused", state}     nobody authorized this, or not this action
--   {"frozen", freeze}     somebody stopped the agent, the tool or the tenant
--   {"gone"}               no such approval
local state = redis.call('HGET', KEYS[1], ARGV[2] .. ':s')
if not state then return {'gone'} end
local i = ARGV[2]
if redis.call('HGET', KEYS[1], i .. ':h') ~= ARGV[3] then return {'refused', 'changed'} end
if state == 'executed' or state == 'failed' then return {'done'} end
if state == 'in_doubt' then return {'in_doubt'} end

local freeze = freeze_of(KEYS[5], cjson.decode(ARGV[9]))
if freeze then return {'frozen', freeze} end

local now = now_ms()
local function take(events)
  local fence = redis.call('HINCRBY', KEYS[1], i .. ':f', 1)
  redis.call('HSET', KEYS[1], i .. ':s', 'executing', i .. ':t', now,
    i .. ':o', ARGV[4], i .. ':u', now + tonumber(ARGV[5]))
  redis.call('HINCRBY', KEYS[1], 'rev', 1)
  reindex(KEYS[1], KEYS[2], ARGV[1], now)
  announce(KEYS[3], KEYS[4], events, now)
  return {'new', fence}
end

if state == 'authorized' then
  -- Given back by its owner after it was read: the policy was not asked about a start.
  if ARGV[6] ~= 'start' then return {'busy', 0} end
  local lapse = tonumber(redis.call('HGET', KEYS[1], i .. ':l') or '0')
  if lapse > 0 and now >= lapse then return {'refused', 'lapsed'} end
  return take(ARGV[7])
end
if state ~= 'executing' then return {'refused', state} end

if redis.call('HGET', KEYS[1], i .. ':o') == ARGV[4] then
  -- The same attempt asks again after a lost answer.
  return {'new', tonumber(redis.call('HGET', KEYS[1], i .. ':f'))}
end
local left = tonumber(redis.call('HGET', KEYS[1], i .. ':u')) - now
if left > tonumber(ARGV[5]) then
  -- This server's clock went back: a dead owner has it no longer than a live one.
  left = tonumber(ARGV[5])
  redis.call('HSET', KEYS[1], i .. ':u', now + left)
  reindex(KEYS[1], KEYS[2], ARGV[1], now)
end
if left > 0 then return {'busy', left} end
if ARGV[6] == 'start' then return {'busy', 0} end
if ARGV[6] == 'repeat' then return take(ARGV[7]) end
redis.call('HSET', KEYS[1], i .. ':s', 'in_doubt', i .. ':t', now)
remind_of_doubt(KEYS[1], now + DAY)
redis.call('HINCRBY', KEYS[1], 'rev', 1)
announce(KEYS[3], KEYS[4], ARGV[8], now)
return {'in_doubt'}

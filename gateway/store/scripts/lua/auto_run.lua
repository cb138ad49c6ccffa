#!lua
-- Begin an auto-approved call, at most once for all holders of its thread's lease,
-- or record its progress.
-- KEYS[1] begun    hash  a turn's auto-approved calls: owner and end of each
-- ARGV[1] verb     text  begin; enter: an agent has started inside the call; end; give_back
-- ARGV[2] call     text  the call's id
-- ARGV[3] fence    int   fence of the current lease
-- ARGV[4] result   text  the sealed result, for end
-- ARGV[5] repeats  int   1 if an interrupted call may run again
-- ARGV[6] keep_ms  int   lifetime from now on, milliseconds
-- Returns:
--   {"run"}           run it now
--   {"ran", result}   it ran under an earlier lease, with this result
--   {"cut_off"}       it was begun under an earlier lease, and its end is unknown
--   {"noted"}
--   {"lost"}          it has begun again under another lease
local call = ARGV[2]
local by = redis.call('HGET', KEYS[1], call .. ':f')
local ours = by == ARGV[3]
if ARGV[1] == 'begin' then
  if by and not ours then
    local result = redis.call('HGET', KEYS[1], call .. ':r')
    if result then return {'ran', result} end
    -- The calls of agents inside it are recorded separately. A paused agent continues
    -- from its checkpoint instead of starting again, so the entry stays across pauses.
    local entered = redis.call('HEXISTS', KEYS[1], call .. ':in') == 1
    if not entered and ARGV[5] ~= '1' then return {'cut_off'} end
  end
  redis.call('HSET', KEYS[1], call .. ':f', ARGV[3])
  -- Under one lease a call may run again (an agent repeats a node), so remove the
  -- result of the attempt before.
  redis.call('HDEL', KEYS[1], call .. ':r')
  redis.call('PEXPIRE', KEYS[1], ARGV[6])
  return {'run'}
end
-- Only for the latest attempt: if the call has begun again under another lease, the
-- result of that attempt counts.
if not ours then return {'lost'} end
if ARGV[1] == 'enter' then
  redis.call('HSET', KEYS[1], call .. ':in', '1')
elseif ARGV[1] == 'end' then
  redis.call('HSET', KEYS[1], call .. ':r', ARGV[4])
else
  redis.call('HDEL', KEYS[1], call .. ':f')
end
redis.call('PEXPIRE', KEYS[1], ARGV[6])
return {'noted'}

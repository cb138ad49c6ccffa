#!lua
-- Begin an auto-approved call, at most once for all holders of its thread's lease,
-- or record what happens to it.
-- KEYS[1] begun    hash  auto-approved calls of one turn: who began each, its end
-- ARGV[1] verb     text  begin; enter: an agent began inside it; end; give_back
-- ARGV[2] call     text  the call's id
-- ARGV[3] fence    int   of the lease that it runs under
-- ARGV[4] result   text  what it came to, sealed, for end
-- ARGV[5] repeats  int   1 when a call that was cut off may run again
-- ARGV[6] keep_ms  int   lifetime from now on, milliseconds
-- Returns:
--   {"run"}           run it now
--   {"ran", result}   it ran under an earlier lease, with this result
--   {"cut_off"}       it was begun under an earlier lease, and nobody knows its end
--   {"noted"}
--   {"lost"}          it was begun again under another lease
local call = ARGV[2]
local by = redis.call('HGET', KEYS[1], call .. ':f')
local ours = by == ARGV[3]
if ARGV[1] == 'begin' then
  if by and not ours then
    local result = redis.call('HGET', KEYS[1], call .. ':r')
    if result then return {'ran', result} end
    -- What agents inside it do is written down for each of their calls. One that
    -- paused goes on from its own checkpoint and does not begin again, so that it
    -- was entered is kept across pauses.
    local entered = redis.call('HEXISTS', KEYS[1], call .. ':in') == 1
    if not entered and ARGV[5] ~= '1' then return {'cut_off'} end
  end
  redis.call('HSET', KEYS[1], call .. ':f', ARGV[3])
  -- Under one lease a call may run again (an agent repeats a node); the result of the
  -- attempt before is not that of this one.
  redis.call('HDEL', KEYS[1], call .. ':r')
  redis.call('PEXPIRE', KEYS[1], ARGV[6])
  return {'run'}
end
-- Only the newest attempt is noted: the call was begun again under another lease, and
-- what comes of that is kept.
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

#!lua
-- Write one decision on one item, if nothing moved since it was read: a reviewer's,
-- that of the policy which takes an authorization back, or that of a recovery.
-- KEYS[1] head       hash    small fields of the approval
-- KEYS[2] blobs      hash    large fields of the approval
-- KEYS[3] expiry     zset    deadlines of the shard
-- KEYS[4] outbox     stream  events
-- KEYS[5] audit      stream  audit log
-- KEYS[6] jobs       stream  resume jobs
-- KEYS[7] waiting    zset    the agent's pending items
-- KEYS[8] refusals   string  how many of the agent's calls were rejected in a row
-- KEYS[9] rejected   hash    what was rejected in this thread, and its turns since
-- KEYS[10] frozen    hash    what is frozen of the tenant
-- KEYS[11] timers    zset    timers of the shard
-- ARGV[1] id         text    the approval
-- ARGV[2] index      int     the item
-- ARGV[3] rev        int     what was read
-- ARGV[4] state_seen text    pending, in_doubt for a reconciliation, or authorized
-- ARGV[5] hash_seen  bytes   32 raw bytes of the action hash that was seen
-- ARGV[6] version    int     the version from now on
-- ARGV[7] state      text    the item's state from now on
-- ARGV[8] hash       bytes   32 raw bytes of the action hash from now on
-- ARGV[9] detail     json    the item's large fields from now on
-- ARGV[10] lapse_ms  int     how long an authorization may wait, milliseconds
-- ARGV[11] keep_ms   int     lifetime of what has ended, milliseconds
-- ARGV[12] events    json    array of event texts
-- ARGV[13] job       json    the resume job, or empty
-- ARGV[14] uses      json    rows of {window, use, within_ms} from now on, or empty
-- ARGV[15] totals    json    what each of their windows came to when it was judged
-- ARGV[16] refusal   json    {call, body} to remember of a rejection, or empty
-- ARGV[17] pause     json    {after, name, body, event}: rejections that pause an agent
-- ARGV[18] expires   int     the deadline from now on, Unix milliseconds
-- ARGV[19] latest    int     the latest it can be given; 0: as it was opened
-- ARGV[20] rings     json    rows of {kind, at_ms}: timers to set
-- Returns:
--   {"done", now_ms}
--   {"gone"}     no such approval
--   {"expired"}  the deadline has passed by this server's clock
--   {"moved"}    another rev, state or hash, or a window holds more than was judged:
--                read again and decide again
local rev = redis.call('HGET', KEYS[1], 'rev')
if not rev then return {'gone'} end
local i = ARGV[2]
local now = now_ms()
local state = redis.call('HGET', KEYS[1], i .. ':s')
if state == 'pending' and now >= tonumber(redis.call('HGET', KEYS[1], 'expires')) then
  -- A recovery may end what is overdue, with a reason of its own.
  if ARGV[7] ~= 'expired' then return {'expired'} end
end
if rev ~= ARGV[3] or state ~= ARGV[4]
  or redis.call('HGET', KEYS[1], i .. ':h') ~= ARGV[5] then
  return {'moved'}
end
if ARGV[14] ~= '' and ARGV[14] ~= redis.call('HGET', KEYS[2], i .. ':w') then
  local own = uses_of(KEYS[2], i)
  local uses, totals = cjson.decode(ARGV[14]), cjson.decode(ARGV[15])
  for place, row in ipairs(uses) do
    if total_with(row[1], row[2], own, now) > tonumber(totals[place]) then
      return {'moved'}
    end
  end
  for _, row in ipairs(own) do release(row[1], row[2]) end
  for _, row in ipairs(uses) do hold(row[1], row[2], ARGV[18] + ARGV[11]) end
  redis.call('HSET', KEYS[2], i .. ':w', ARGV[14])
end

redis.call('HSET', KEYS[1], 'rev', tonumber(rev) + 1, 'version', ARGV[6],
  i .. ':s', ARGV[7], i .. ':h', ARGV[8])
if state ~= ARGV[7] then
  redis.call('HSET', KEYS[1], i .. ':t', now)
end
if state == 'in_doubt' and ARGV[7] ~= 'in_doubt' then
  -- Whatever this attempt's owner says from now on comes after people settled it.
  redis.call('HSET', KEYS[1], i .. ':k', redis.call('HGET', KEYS[1], i .. ':f') or '0')
  if ARGV[7] == 'authorized' then
    -- What the last attempt came to is no result of the next one.
    redis.call('HDEL', KEYS[2], i .. ':r')
  end
end
if ARGV[7] == 'authorized' then
  redis.call('HSET', KEYS[1], i .. ':l', now + tonumber(ARGV[10]))
end
if redis.call('HGET', KEYS[1], 'expires') ~= ARGV[18] then
  -- Its tier was raised, or it waits anew: it waits as the stricter one lets it.
  for n = 0, tonumber(redis.call('HGET', KEYS[1], 'n')) - 1 do
    redis.call('ZADD', KEYS[7], 'XX', ARGV[18], ARGV[1] .. '.' .. n)
  end
  for _, ring in ipairs(cjson.decode(ARGV[20])) do
    redis.call('ZADD', KEYS[11], ring[2], ARGV[1] .. ' ' .. ring[1])
  end
end
redis.call('HSET', KEYS[1], 'expires', ARGV[18], 'latest', ARGV[19])
redis.call('HSET', KEYS[2], i .. ':d', ARGV[9])
reindex(KEYS[1], KEYS[3], ARGV[1], now)
retain(KEYS[1], KEYS[2], ARGV[11])
settle(KEYS[2], i, ARGV[7], now, ARGV[18] + ARGV[11])
announce(KEYS[4], KEYS[5], ARGV[12], now)
if ARGV[7] ~= 'pending' then
  redis.call('ZREM', KEYS[7], ARGV[1] .. '.' .. i)
elseif state ~= 'pending' then
  -- An authorization was taken back: people have to decide again.
  redis.call('ZADD', KEYS[7], ARGV[18], ARGV[1] .. '.' .. i)
end
until_last(KEYS[7])
if ARGV[7] == 'authorized' and state == 'pending' then
  redis.call('DEL', KEYS[8])
elseif ARGV[7] == 'rejected' and ARGV[16] ~= '' then
  local refusal, pause = cjson.decode(ARGV[16]), cjson.decode(ARGV[17])
  local turns = redis.call('HINCRBY', KEYS[9], 'turns', 0)
  redis.call('HSET', KEYS[9], refusal.call, turns .. ' ' .. refusal.body)
  redis.call('PEXPIRE', KEYS[9], ARGV[11])
  local count = redis.call('INCR', KEYS[8])
  redis.call('PEXPIRE', KEYS[8], ARGV[11])
  if count >= pause.after then
    redis.call('DEL', KEYS[8])
    if redis.call('HSETNX', KEYS[10], pause.name, pause.body) == 1 then
      announce(KEYS[4], KEYS[5], cjson.encode({pause.event}), now)
    end
  end
end
enqueue(KEYS[6], ARGV[13])
return {'done', now}

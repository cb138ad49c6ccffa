#!lua
-- Write the next version of one approval, with everything that belongs to it, if
-- nothing moved since it was read. What moves is computed by pure functions
-- (approvals/*.py); this only compares, writes, and keeps the indexes true.
-- include precedents.lua
-- include next_version.lua
-- include hand_over.lua
-- KEYS[1] head        hash    what changes of the approval
-- KEYS[2] pinned      string  what no decision changes of it
-- KEYS[3] expiry      zset    deadlines of the shard
-- KEYS[4] outbox      stream  events
-- KEYS[5] audit       stream  audit log
-- KEYS[6] jobs        stream  resume jobs
-- KEYS[7] waiting     zset    the agent's pending items
-- KEYS[8] timers      zset    timers of the shard
-- KEYS[9] frozen      hash    what is frozen of the tenant
-- KEYS[10] rejections   string  how many of the agent's calls were rejected in a row
-- KEYS[11] rejected   hash    what was rejected in this thread, and its turns since
-- KEYS[12] failures   zset    the agent's failed executions
-- KEYS[13..] thread   key     lease, fences, mark of a dropped run and facts of the thread;
--                             none without a taker
-- ARGV[1] change      json    what moves, see next_version.lua
-- ARGV[2] failed_ms   int     how long a failure counts, milliseconds
-- ARGV[3] keep_ms     int     lifetime of what has ended, milliseconds
-- ARGV[4] taker       json    {group, consumer, token, ttl_ms}: the worker that would begin
--                             the job at once, and what its lease is to be; or empty
-- Returns:
--   {"done", now}  written, at this moment of this server's clock
--   {"done", now, fence, job}  and the taker has the job with this id, and the lease
--   {"gone"}   no such approval
--   {"moved"}  read again and compute again: another rev, a claim that was renewed, a
--              reading that is too old, a deadline that has passed, a freeze, a timer
--              that somebody else fired, a window that holds more than was evaluated,
--              other precedents than were evaluated by, a standing approval that ended
--              since, or something that is not as it was assumed to be

local change = change_of(ARGV[1], ARGV[2], ARGV[3])
change.head, change.pinned, change.expiry, change.outbox = unpack(KEYS, 1, 4)
change.audit, change.jobs, change.waiting, change.timers = unpack(KEYS, 5, 8)
change.frozen, change.rejections, change.rejected, change.failures = unpack(KEYS, 9, 12)
if redis.call('EXISTS', change.head) == 0 then return {'gone'} end
local now = now_ms()
if has_moved(change, now) then return {'moved'} end
local taker = ARGV[4] ~= '' and change.job ~= '' and cjson.decode(ARGV[4]) or nil
local lease, fences, dropped, facts = unpack(KEYS, 13)
local is_taken = taker
  and may_hand_over(taker, change.jobs, lease, fences, dropped, facts)
-- Every check is above, every write below: Redis does not roll back a script that stops
-- in the middle.
write_version(change, now)
count_rejections({change}, now)
if is_taken then
  local fence = hand_over(taker, change.jobs, change.queued, lease, fences)
  if fence then return {'done', now, fence, change.queued} end
end
return {'done', now}

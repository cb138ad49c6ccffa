#!lua
-- Write the next versions of several approvals of one shard, all of them or none, and
-- what is to be announced of all together.
-- include precedents.lua
-- include next_version.lua
-- KEYS[1] expiry      zset    deadlines of the shard
-- KEYS[2] outbox      stream  events
-- KEYS[3] audit       stream  audit log
-- KEYS[4] jobs        stream  resume jobs
-- KEYS[5] timers      zset    timers of the shard
-- KEYS[6] frozen      hash    what is frozen of the tenant
-- KEYS[7..] records   key     of each approval: head, pinned, waiting, rejections,
--                             rejected and failures, as change.lua has them
-- ARGV[1] failed_ms   int     how long a failure counts, milliseconds
-- ARGV[2] keep_ms     int     lifetime of what has ended, milliseconds
-- ARGV[3] events      json    array of event texts about all of it, before those of the
--                             approvals
-- ARGV[4..] changes   json    of each approval: what moves, see next_version.lua
-- Returns:
--   {"done", now}  written, at this moment of this server's clock
--   {"moved"}  read all again and compute all again: of one of them change.lua would say
--              that it moved or is gone, or the changes before it take the room in a
--              window that it was evaluated by
local NAMES = {'head', 'pinned', 'waiting', 'rejections', 'rejected', 'failures'}
local FIRST_KEY, FIRST_CHANGE = 7, 4
local changes = {}
for i = FIRST_CHANGE, #ARGV do
  local change = change_of(ARGV[i], ARGV[1], ARGV[2])
  local first = FIRST_KEY + #changes * #NAMES
  for place, name in ipairs(NAMES) do change[name] = KEYS[first + place - 1] end
  change.expiry, change.outbox, change.audit = KEYS[1], KEYS[2], KEYS[3]
  change.jobs, change.timers, change.frozen = KEYS[4], KEYS[5], KEYS[6]
  changes[#changes + 1] = change
end
local now = now_ms()
local added = {}
for _, change in ipairs(changes) do
  -- One that is gone has no rev, and every change was read with one.
  if has_moved(change, now, added) then return {'moved'} end
end

-- Every check of all changes is above, every write below: Redis does not roll back a
-- script that stops in the middle.
announce(KEYS[2], KEYS[3], ARGV[3], now)
for _, change in ipairs(changes) do write_version(change, now) end
count_rejections(changes, now)
return {'done', now}

#!lua
-- Write the next versions of approvals of one tenant with all related data, if nothing
-- changed since they were read: all or none. Pure functions (approvals/*.py) compute
-- the changes; this script only compares, writes, and updates the indexes.
-- include records.lua
-- include lifetimes.lua
-- include windows.lua
-- include precedents.lua
-- include next_version.lua
-- KEYS[1] expiry      zset    deadlines of the tenant
-- KEYS[2] outbox      stream  events
-- KEYS[3] audit       stream  audit log
-- KEYS[4] jobs        stream  resume jobs
-- KEYS[5] timers      zset    timers of the tenant
-- KEYS[6] frozen      hash    pauses of agents; the key of the list of freezes follows from it
-- KEYS[7..] records   key     of each approval, in this order:
--   head        hash    the fields that scripts compare
--   document    string  the rest of it
--   waiting     zset    the agent's pending items
--   rejections  string  number of the agent's consecutive rejections
--   rejected    hash    rejected calls of the thread, and the turns since
--   failures    zset    the agent's failed executions
-- ARGV[1] failed_ms   int     how long a failure counts, milliseconds
-- ARGV[2] keep_ms     int     lifetime of ended approvals, milliseconds
-- ARGV[3] events      json    array of event texts about all changes, written before those
--                             of the approvals
-- ARGV[4] count       int     number of approvals that change
-- ARGV[5..] changes   mixed   for each approval the change (json), see next_version.lua,
--                             and its document (bytes; empty for no change)
-- Returns:
--   {"done", now}  written at this time of the server's clock
--   {"moved"}  read and compute again: an approval has another revision or is gone, a claim
--              was renewed, the read is too old, a deadline has passed, there is a freeze,
--              another process fired the timer, a window's sum is higher than evaluated
--              (including earlier changes of this call), precedents have changed, or a
--              standing approval has ended
local NAMES = {'head', 'document', 'waiting', 'rejections', 'rejected', 'failures'}
local FIRST_KEY, FIRST_CHANGE = 7, 5
local changes = {}
-- With their number: leases for comparison may follow.
for i = 0, tonumber(ARGV[4]) - 1 do
  local at = FIRST_CHANGE + i * 2
  local change = change_of(ARGV[at], ARGV[at + 1], ARGV[1], ARGV[2])
  local first = FIRST_KEY + i * #NAMES
  for place, name in ipairs(NAMES) do change[name] = KEYS[first + place - 1] end
  change.expiry, change.outbox, change.audit = KEYS[1], KEYS[2], KEYS[3]
  change.jobs, change.timers, change.frozen = KEYS[4], KEYS[5], KEYS[6]
  changes[#changes + 1] = change
end
local now = now_ms()
local added = {}
for _, change in ipairs(changes) do
  if has_moved(change, now, added) then return {'moved'} end
end

-- All checks are above, all writes below: Redis does not roll back a script that stops
-- in the middle.
announce(KEYS[2], KEYS[3], ARGV[3], now)
for _, change in ipairs(changes) do write_version(change, now) end
count_rejections(changes, now)
return {'done', now}

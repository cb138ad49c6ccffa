#!lua
-- Write the next versions of approvals of one tenant, with everything that belongs to
-- them, if nothing moved since they were read: all of them or none. What moves is
-- computed by pure functions (approvals/*.py); this only compares, writes, and keeps the
-- indexes true.
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
-- KEYS[6] frozen      hash    pauses of agents; the list of freezes stands beside it
-- KEYS[7..] records   key     of each approval, in this order:
--   head        hash    what scripts compare of the approval
--   document    string  the rest of it
--   waiting     zset    the agent's pending items
--   rejections  string  how many of the agent's calls were rejected in a row
--   rejected    hash    what was rejected in this thread, and its turns since
--   failures    zset    the agent's failed executions
-- ARGV[1] failed_ms   int     how long a failure counts, milliseconds
-- ARGV[2] keep_ms     int     lifetime of what has ended, milliseconds
-- ARGV[3] events      json    array of event texts about all of it, before those of the
--                             approvals
-- ARGV[4] count       int     how many approvals change
-- ARGV[5..] changes   mixed   of each approval: what moves (json), see next_version.lua,
--                             and its document (bytes; empty to leave it)
-- Returns:
--   {"done", now}  written, at this moment of this server's clock
--   {"moved"}  read again and compute again: of one approval there is another rev, a claim
--              that was renewed, a reading that is too old, a deadline that has passed, a
--              freeze, a timer that somebody else fired, a window that holds more than was
--              evaluated (also by the changes before it), other precedents than were
--              evaluated by, a standing approval that ended since; or it is gone
local NAMES = {'head', 'document', 'waiting', 'rejections', 'rejected', 'failures'}
local FIRST_KEY, FIRST_CHANGE = 7, 5
local changes = {}
-- Counted: a lease that is compared stands behind them.
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

-- Every check of all changes is above, every write below: Redis does not roll back a
-- script that stops in the middle.
announce(KEYS[2], KEYS[3], ARGV[3], now)
for _, change in ipairs(changes) do write_version(change, now) end
count_rejections(changes, now)
return {'done', now}

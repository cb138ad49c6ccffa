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
-- ARGV[1] id          text    the approval
-- ARGV[2] rev         text    what was read; "" for a corrupt record without one
-- ARGV[3] seen_ms     int     when it was read, by this server's clock
-- ARGV[4] before_ms   int     not to be written from this moment on; 0: at any moment
-- ARGV[5] unfrozen    json    array of names of which none may be frozen, behind the seal
--                             of the list of freezes; empty for none
-- ARGV[6] fires       text    kind of the timer that has to be due, and is taken out
-- ARGV[7] fields      json    {field: text, or false to delete it}; bytes in hex
-- ARGV[8] as_read     json    {field: text} of the head as it was read, bytes in hex:
--                             its seal; a heartbeat renews a claim without another rev
-- ARGV[9] states      json    {index: state} of items whose state or deadline moved
-- ARGV[10] uses       json    {index: {rows, totals}}: what an item uses of windows from
--                             now on (json), and what each came to when it was evaluated
-- ARGV[11] set        json    rows of {kind, at_ms}: timers to set; at 0: to take out
-- ARGV[12] events     json    array of event texts
-- ARGV[13] job        json    the resume job, or empty
-- ARGV[14] rejection  json    {calls: rows of {call, body}, after, name, pause, event} of
--                             rejections; with "ends" where a call of the same change was
--                             authorized; {"ends": true} of an authorization; or empty
-- ARGV[15] failed     json    array of items whose execution failed
-- ARGV[16] failed_ms  int     how long a failure counts, milliseconds
-- ARGV[17] keep_ms    int     lifetime of what has ended, milliseconds
-- ARGV[18] precedents json    rows of {key, call, kind, body, keep_ms} to note
-- ARGV[19] seen       json    rows of {key, n}: precedents that the evaluation used
-- ARGV[20] standing   json    rows of {id, state}: standing approvals as they were read
-- ARGV[21] queues     json    {leaves, enters, groups}: queues of people to leave, rows of
--                             {queue, lists, groups} to be in, the set of all groups
-- ARGV[22] assumed    json    what has to be so, where it is named: {large: SHA-1 of
--                             large fields, and of what is pinned; totals: rows of
--                             {index, window, use, total}; place: channel and ts of its
--                             card; alone: whom no queue is delegated to, by delegations,
--                             a key; unseen: a key that nothing stands under}
-- ARGV[23] kept       json    rows of {key, text, keep_ms}: texts to keep beside it
-- ARGV[24] taker      json    {group, consumer, token, ttl_ms}: the worker that would begin
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

-- Most of a change is empty. Each is a table of its own: some are written to.
local function decoded(json)
  if json == '[]' or json == '{}' then return {} end
  return cjson.decode(json)
end

local change = {
  head = KEYS[1], pinned = KEYS[2], expiry = KEYS[3], outbox = KEYS[4],
  audit = KEYS[5], jobs = KEYS[6], waiting = KEYS[7], timers = KEYS[8],
  frozen = KEYS[9], rejections = KEYS[10], rejected = KEYS[11], failures = KEYS[12],
  id = ARGV[1], rev = ARGV[2], seen_ms = tonumber(ARGV[3]),
  before_ms = tonumber(ARGV[4]), unfrozen = decoded(ARGV[5]), fires = ARGV[6],
  fields = decoded(ARGV[7]), as_read = decoded(ARGV[8]),
  states = decoded(ARGV[9]),
  uses = decoded(ARGV[10]), set = decoded(ARGV[11]), events = ARGV[12],
  job = ARGV[13], rejection = ARGV[14] ~= '' and decoded(ARGV[14]) or {},
  failed = decoded(ARGV[15]), failed_ms = tonumber(ARGV[16]),
  keep_ms = tonumber(ARGV[17]), precedents = decoded(ARGV[18]),
  seen = decoded(ARGV[19]), standing = decoded(ARGV[20]),
  queues = decoded(ARGV[21]),
  assumed = decoded(ARGV[22]), kept = decoded(ARGV[23]),
}
if redis.call('EXISTS', change.head) == 0 then return {'gone'} end
local now = now_ms()
if has_moved(change, now) then return {'moved'} end
local taker = ARGV[24] ~= '' and change.job ~= '' and cjson.decode(ARGV[24]) or nil
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

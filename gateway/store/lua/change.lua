#!lua
-- Write the next version of one approval, with everything that belongs to it, if
-- nothing moved since it was read. What moves is computed by pure functions
-- (approvals/*.py); this only compares, writes, and keeps the indexes true.
-- KEYS[1] head        hash    small fields of the approval
-- KEYS[2] blobs       hash    large fields of the approval
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
-- ARGV[1] id          text    the approval
-- ARGV[2] rev         text    what was read; "" for a corrupt record without one
-- ARGV[3] seen_ms     int     when it was read, by this server's clock
-- ARGV[4] before_ms   int     not to be written from this moment on; 0: at any moment
-- ARGV[5] unfrozen    json    array of names of which none may be frozen
-- ARGV[6] fires       text    kind of the timer that has to be due, and is taken out
-- ARGV[7] head_fields json    {field: text, or false to delete it}; hashes in hex
-- ARGV[8] leases      json    {field: text} of claims as they were read: a heartbeat
--                             renews one without another rev
-- ARGV[9] blob_fields json    the same of the large fields
-- ARGV[10] states      json    {index: state} of items whose state or deadline moved
-- ARGV[11] uses       json    {index: {rows, totals}}: what an item uses of windows from
--                             now on (json), and what each came to when it was evaluated
-- ARGV[12] set        json    rows of {kind, at_ms}: timers to set; at 0: to take out
-- ARGV[13] events     json    array of event texts
-- ARGV[14] job        json    the resume job, or empty
-- ARGV[15] rejection  json    {calls: rows of {call, body}, after, name, pause, event} of
--                             rejections; with "ends" where a call of the same change was
--                             authorized; {"ends": true} of an authorization; or empty
-- ARGV[16] failed     json    array of items whose execution failed
-- ARGV[17] failed_ms  int     how long a failure counts, milliseconds
-- ARGV[18] keep_ms    int     lifetime of what has ended, milliseconds
-- ARGV[19] precedents json    rows of {key, call, kind, body, keep_ms} to note
-- ARGV[20] seen       json    rows of {key, n}: precedents that the evaluation used
-- ARGV[21] standing   json    rows of {id, state}: standing approvals as they were read
-- Returns:
--   {"done", now}  written, at this moment of this server's clock
--   {"gone"}   no such approval
--   {"moved"}  read again and compute again: another rev, a claim that was renewed, a
--              reading that is too old, a deadline that has passed, a freeze, a timer
--              that somebody else fired, a window that holds more than was evaluated,
--              other precedents than were evaluated by, or a standing approval that
--              ended since
local head, blobs, id = KEYS[1], KEYS[2], ARGV[1]
if redis.call('EXISTS', head) == 0 then return {'gone'} end
local rev = redis.call('HGET', head, 'rev') or ''
local now = now_ms()
-- Times of the next version were computed from the reading: an old one is not used.
local age = math.abs(now - tonumber(ARGV[3]))
if rev ~= ARGV[2] or age > MAX_READING_MS then return {'moved'} end
-- The rev alone would let a sweep end a call whose owner sent a heartbeat meanwhile.
for field, value in pairs(cjson.decode(ARGV[8])) do
  if (redis.call('HGET', head, field) or '') ~= value then return {'moved'} end
end
local before = tonumber(ARGV[4])
-- Compared here and not by the caller, who may be paused before the write arrives. What
-- computes again finds the deadline over, and says so.
if before > 0 and now >= before then return {'moved'} end
local names = cjson.decode(ARGV[5])
-- Somebody may have frozen the tool between the evaluation of the claim and now.
if #names > 0 and freeze_of(KEYS[9], names) then return {'moved'} end
local timer = id .. ' ' .. ARGV[6]
if ARGV[6] ~= '' then
  local due = redis.call('ZSCORE', KEYS[8], timer)
  if not due or now < tonumber(due) then return {'moved'} end
end
local uses = {}
for i, inputs in pairs(cjson.decode(ARGV[11])) do
  -- Uses that stay as they are were compared when they were reserved; every later call
  -- was evaluated with them in its sums.
  if inputs.rows ~= redis.call('HGET', blobs, i .. ':w') then
    local own = uses_of(blobs, i)
    for index, row in ipairs(cjson.decode(inputs.rows)) do
      if total_with(row[1], row[2], own, now) > tonumber(inputs.totals[index]) then
        return {'moved'}
      end
    end
    uses[i] = inputs.rows
  end
end
-- A call with the same effect was approved meanwhile, maybe by a click of this moment.
if have_precedents_moved(cjson.decode(ARGV[20])) then return {'moved'} end
-- Somebody may revoke a standing approval between the evaluation of a claim and now. Its
-- key follows from this one, as keys.py makes them, and has the same hash tag.
local base = string.match(head, '^(.+:)a:')
for _, row in ipairs(cjson.decode(ARGV[21])) do
  if redis.call('HGET', base .. 'a:' .. row[1], '0:s') ~= row[2] then return {'moved'} end
end

-- Every check is above, every write below: Redis does not roll back a script that stops
-- in the middle.
local keep = tonumber(ARGV[18])
if ARGV[6] ~= '' then redis.call('ZREM', KEYS[8], timer) end
-- A corrupt record may hold no number; any new rev makes what others have read of it
-- stale.
redis.call('HSET', head, 'rev', (tonumber(rev) or 0) + 1)
write_fields(head, cjson.decode(ARGV[7]))
write_fields(blobs, cjson.decode(ARGV[9]))

for i, rows in pairs(uses) do
  local expires = tonumber(end_of(head, i)) or now
  -- Before the new ones are held: both lists may name one use, and then it counts.
  for _, row in ipairs(uses_of(blobs, i)) do release(row[1], row[2]) end
  for _, row in ipairs(cjson.decode(rows)) do hold(row[1], row[2], expires + keep) end
  redis.call('HSET', blobs, i .. ':w', rows)
end
local corrupt = redis.call('HEXISTS', head, 'quarantined') == 1
for i, state in pairs(cjson.decode(ARGV[10])) do
  local item, expires = id .. '.' .. i, tonumber(end_of(head, i)) or now
  if state == 'pending' then
    redis.call('ZADD', KEYS[7], expires, item)
  else
    redis.call('ZREM', KEYS[7], item)
  end
  if corrupt then
    -- Its uses may be the corrupt part: then it counts until it is forgotten.
    pcall(update_uses, blobs, i, state, now, expires + keep)
  else
    update_uses(blobs, i, state, now, expires + keep)
  end
end
until_last(KEYS[7])
for _, row in ipairs(cjson.decode(ARGV[12])) do
  if row[2] == 0 then
    redis.call('ZREM', KEYS[8], id .. ' ' .. row[1])
  else
    redis.call('ZADD', KEYS[8], row[2], id .. ' ' .. row[1])
  end
end
if corrupt then
  -- Quarantined: with a deadline, each sweep would find it again.
  redis.call('ZREM', KEYS[3], id)
else
  -- After the fields are written, which it reads; so does retain below.
  reindex(head, KEYS[3], id, now)
end
retain(head, blobs, keep)
announce(KEYS[4], KEYS[5], ARGV[13], now)
enqueue(KEYS[6], ARGV[14])
note_precedents(cjson.decode(ARGV[19]), now)

for _, item in ipairs(cjson.decode(ARGV[16])) do
  redis.call('ZREMRANGEBYSCORE', KEYS[12], '-inf', now)
  redis.call('ZADD', KEYS[12], now + tonumber(ARGV[17]), item)
  redis.call('PEXPIRE', KEYS[12], ARGV[17])
end
if ARGV[15] ~= '' then
  local rejection = cjson.decode(ARGV[15])
  local calls = rejection.calls or {}
  if #calls > 0 then
    -- By 0: reads the count, and makes the field that open.lua goes on counting in.
    local turns = redis.call('HINCRBY', KEYS[11], 'turns', 0)
    for _, row in ipairs(calls) do
      redis.call('HSET', KEYS[11], row[1], turns .. ' ' .. row[2])
    end
    redis.call('PEXPIRE', KEYS[11], keep)
  end
  -- An authorization ends the row of rejections, also by the same gesture.
  if rejection.ends then
    redis.call('DEL', KEYS[10])
    return {'done', now}
  end
  -- Many calls that are rejected together count once: somebody said no once.
  local count = redis.call('INCR', KEYS[10])
  redis.call('PEXPIRE', KEYS[10], keep)
  -- The count restarts with the pause, so that lifting it gives the agent its full
  -- number of tries.
  if count >= rejection.after then
    redis.call('DEL', KEYS[10])
    -- A pause that stands keeps its reason, and is not announced again.
    if redis.call('HSETNX', KEYS[9], rejection.name, rejection.pause) == 1 then
      announce(KEYS[4], KEYS[5], cjson.encode({rejection.event}), now)
    end
  end
end
return {'done', now}

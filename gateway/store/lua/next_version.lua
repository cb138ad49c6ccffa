-- What it takes to write the next version of an approval: `has_moved` compares and writes
-- nothing, `write_version` and `count_rejections` write and compare nothing. script.py
-- puts this behind the prelude of a script that includes it. A change is a table with its
-- keys by the names that they have in the header of change.lua, how long things count and
-- live, and what moves. That is sent as JSON, in which what is empty is left out:
--   id         text    the approval
--   rev        text    what was read; none for a corrupt record without one
--   seen_ms    int     when it was read, by this server's clock
--   before_ms  int     not to be written from this moment on; none: at any moment
--   unfrozen   array   seal of the list of freezes by which nothing of it is frozen, and
--                      names of pauses; or none
--   fires      text    kind of the timer that has to be due, and is taken out
--   fields     table   {field: text, or false to delete it}; bytes in hex
--   as_read    table   {field: text} of the head as it was read, bytes in hex: its seal; a
--                      heartbeat renews a claim without another rev
--   states     table   {index: state} of items whose state or deadline moved
--   uses       array   {index, rows, totals}, in the order of their evaluation: what an
--                      item uses of windows from now on (json), and what each came to
--   set        array   rows of {kind, at_ms}: timers to set; at 0: to take out
--   events     array   event texts, each with its seal
--   job        text    the resume job
--   rejection  table   {calls: rows of {call, body}, after, name, pause, event} of
--                      rejections; with "ends" where a call of the same change was
--                      authorized; {"ends": true} of an authorization
--   failed     array   items whose execution failed
--   precedents array   rows of {key, call, kind, body, keep_ms} to note
--   seen       array   rows of {key, n}: precedents that the evaluation used
--   standing   array   rows of {id, state}: standing approvals as they were read
--   queues     table   {leaves, enters, groups}: queues of people to leave, rows of {queue,
--                      lists, groups} to be in, the set of all groups
local TABLES = {'unfrozen', 'fields', 'as_read', 'states', 'uses', 'set', 'events',
  'rejection', 'failed', 'precedents', 'seen', 'standing', 'queues'}

-- Read a change, with what is empty in it.
local function change_of(json, body, failed_ms, keep_ms)
  local change = cjson.decode(json)
  change.body = body
  for _, name in ipairs(TABLES) do change[name] = change[name] or {} end
  change.rev, change.fires = change.rev or '', change.fires or ''
  change.before_ms, change.job = change.before_ms or 0, change.job or ''
  change.failed_ms, change.keep_ms = tonumber(failed_ms), tonumber(keep_ms)
  return change
end

-- Return whether something moved since a change was computed. `added` is by window what
-- the calls that are approved before add to it: each was evaluated beside them.
local function has_moved(change, now, added)
  local head = change.head
  if redis.call('EXISTS', head) == 0 then return true end
  -- Times of the next version were computed from the reading: an old one is not used.
  local age = math.abs(now - change.seen_ms)
  if (redis.call('HGET', head, 'rev') or '') ~= change.rev or age > MAX_READING_MS then
    return true
  end
  -- The rev alone would let a sweep end a call whose owner sent a heartbeat meanwhile.
  if differs(head, change.as_read) then return true end
  -- Compared here and not by the caller, who may be paused before the write arrives. What
  -- computes again finds the deadline over, and says so.
  if change.before_ms > 0 and now >= change.before_ms then return true end
  -- Somebody may have frozen the tool between the evaluation of the claim and now.
  if #change.unfrozen > 0 and freeze_of(change.frozen, change.unfrozen) then return true end
  if change.fires ~= '' then
    local due = redis.call('ZSCORE', change.timers, change.id .. ' ' .. change.fires)
    if not due or now < tonumber(due) then return true end
  end
  for _, inputs in ipairs(change.uses) do
    local i = inputs.index
    -- Uses that stay as they are were compared when they were reserved; every later call
    -- was evaluated with them in its sums.
    if inputs.rows ~= (redis.call('HGET', change.head, i .. ':w') or '[]') then
      local own = uses_of(change.head, i)
      for index, row in ipairs(cjson.decode(inputs.rows)) do
        local total, before = total_with(row[1], row[2], own, now), added[row[1]] or 0
        added[row[1]] = before + total - tonumber(slide(row[1], now))
        if total + before > tonumber(inputs.totals[index]) then return true end
      end
    end
  end
  -- A call with the same effect was approved meanwhile, maybe by a click of this moment.
  if have_precedents_moved(change.seen) then return true end
  -- Somebody may revoke a standing approval between the evaluation of a claim and now.
  -- Its key follows from this one, as keys.py makes them, and has the same hash tag.
  local base = string.match(head, '^(.+:)a:')
  for _, row in ipairs(change.standing) do
    if redis.call('HGET', base .. 'a:' .. row[1], '0:s') ~= row[2] then return true end
  end
  return false
end

-- Let items use of windows what a change says, instead of what they used.
local function move_uses(change, now)
  local head = change.head
  for _, inputs in ipairs(change.uses) do
    local i = inputs.index
    if inputs.rows ~= (redis.call('HGET', head, i .. ':w') or '[]') then
      local expires = tonumber(end_of(head, i)) or now
      -- Before the new ones are held: both lists may name one use, and then it counts.
      for _, row in ipairs(uses_of(head, i)) do release(row[1], row[2]) end
      for _, row in ipairs(cjson.decode(inputs.rows)) do
        hold(row[1], row[2], expires + change.keep_ms)
      end
      redis.call('HSET', head, i .. ':w', inputs.rows)
    end
  end
end

-- Remember calls as rejected in their thread, for as long as its turns are counted.
local function remember_rejected(change)
  local calls = change.rejection.calls or {}
  if #calls == 0 then return end
  -- By 0: reads the count, and makes the field that open.lua goes on counting in.
  local turns = redis.call('HINCRBY', change.rejected, 'turns', 0)
  for _, row in ipairs(calls) do
    redis.call('HSET', change.rejected, row[1], turns .. ' ' .. row[2])
  end
  redis.call('PEXPIRE', change.rejected, change.keep_ms)
end

-- Move an approval between the queues of people as a change says; it stands in each by
-- the earliest end of what waits in it.
local function move_queues(change)
  for _, queue in ipairs(change.queues.leaves or {}) do
    redis.call('ZREM', queue, listed(change.id))
  end
  local enters = change.queues.enters or {}
  if #enters == 0 then return end
  local due = nil
  for i = 0, (tonumber(redis.call('HGET', change.head, 'n')) or 0) - 1 do
    if redis.call('HGET', change.head, i .. ':s') == 'pending' then
      local ends = tonumber(end_of(change.head, i))
      if ends and (due == nil or ends < due) then due = ends end
    end
  end
  if due then
    enter_queues(enters, change.id, due, change.queues.groups)
  end
end

-- Write a change, and everything that belongs to it but the row of rejections; the id of
-- its job is `queued`.
local function write_version(change, now)
  local head, id, keep = change.head, change.id, change.keep_ms
  if change.fires ~= '' then redis.call('ZREM', change.timers, id .. ' ' .. change.fires) end
  -- A corrupt record may hold no number; any new rev makes what others have read of it
  -- stale.
  change.fields.rev = (tonumber(change.rev) or 0) + 1
  write_fields(head, change.fields)
  if change.body ~= '' then redis.call('SET', change.document, change.body) end
  move_uses(change, now)
  local corrupt = redis.call('HEXISTS', head, 'quarantined') == 1
  for i, state in pairs(change.states) do
    local item, expires = listed(id) .. i, now
    if state == 'pending' then
      expires = tonumber(end_of(head, i)) or now
      redis.call('ZADD', change.waiting, expires, item)
      until_last(change.waiting)
    else
      redis.call('ZREM', change.waiting, item)
    end
    if corrupt then
      -- Its uses may be the corrupt part: then it counts until it is forgotten.
      pcall(update_uses, head, i, state, now, expires + keep)
    else
      update_uses(head, i, state, now, expires + keep)
    end
  end
  move_queues(change)
  for _, row in ipairs(change.set) do
    if row[2] == 0 then
      redis.call('ZREM', change.timers, id .. ' ' .. row[1])
    else
      redis.call('ZADD', change.timers, row[2], id .. ' ' .. row[1])
    end
  end
  if corrupt then
    -- Quarantined: with a deadline, each sweep would find it again.
    redis.call('ZREM', change.expiry, listed(id))
  else
    -- After the fields are written, which it reads; so does retain below.
    reindex(head, change.expiry, id, now)
  end
  retain(head, change.document, keep)
  announce_each(change.outbox, change.audit, change.events, now)
  change.queued = enqueue(change.jobs, change.job)
  note_precedents(change.precedents, now)
  for _, item in ipairs(change.failed) do
    redis.call('ZREMRANGEBYSCORE', change.failures, '-inf', now)
    redis.call('ZADD', change.failures, now + change.failed_ms, item)
    redis.call('PEXPIRE', change.failures, change.failed_ms)
  end
  remember_rejected(change)
end

-- Count one more rejection in a row of an agent; pause it after so many.
local function count_rejection(change, now)
  local rejection = change.rejection
  local count = redis.call('INCR', change.rejections)
  redis.call('PEXPIRE', change.rejections, change.keep_ms)
  -- The count restarts with the pause, so that lifting it gives the agent its full
  -- number of tries.
  if count >= rejection.after then
    redis.call('DEL', change.rejections)
    -- A pause that stands keeps its reason, and is not announced again.
    if redis.call('HSETNX', change.frozen, rejection.name, rejection.pause) == 1 then
      announce_each(change.outbox, change.audit, {rejection.event}, now)
    end
  end
end

-- Count what one gesture rejected, by agent, after all of its changes were written.
local function count_rejections(changes, now)
  local ended = {}
  for _, change in ipairs(changes) do
    -- An authorization ends the row of rejections, also by the same gesture.
    if change.rejection.ends then
      redis.call('DEL', change.rejections)
      ended[change.rejections] = true
    end
  end
  for _, change in ipairs(changes) do
    -- Many calls that are rejected together count once: somebody said no once.
    if change.rejection.calls and not ended[change.rejections] then
      count_rejection(change, now)
      ended[change.rejections] = true
    end
  end
end

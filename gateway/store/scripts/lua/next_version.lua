-- Write the next version of an approval: `has_moved` only compares; `write_version` and
-- `count_rejections` only write. script.py inserts this after the prelude of a script
-- that includes it. A change is a table: its keys as named in the header of change.lua,
-- the lifetimes, and the change itself. The latter is JSON without empty fields:
--   id         text    the approval
--   rev        text    the revision that was read; missing for a corrupt record without one
--   seen_ms    int     time of the read, by this server's clock
--   before_ms  int     time limit of the write; missing for no limit
--   unfrozen   array   seal of a list of freezes without these names, and names of pauses;
--                      or missing
--   fires      text    kind of the timer that must be due, and is removed
--   fields     table   {field: text, or false to delete it}; bytes in hex
--   as_read    table   {field: text} of the head as it was read, bytes in hex: its seal,
--                      and claims, since a heartbeat renews a claim in the same revision
--   states     table   {index: state} of items whose state or deadline changed
--   uses       array   {index, rows, totals}, in the order of evaluation: an item's new
--                      uses of windows (json), and the sums in the evaluation
--   set        array   rows of {kind, at_ms}: timers to set; 0 to remove
--   events     array   event texts, each with its seal
--   job        text    the resume job
--   rejection  table   {calls: rows of {call, body}, after, name, pause, event} of
--                      rejections; with "ends" if a call of the same change was
--                      authorized; {"ends": true} for an authorization
--   failed     array   items whose execution failed
--   precedents array   rows of {key, call, kind, body, keep_ms} to note
--   seen       array   rows of {key, n}: precedents that the evaluation used
--   standing   array   rows of {id, state}: standing approvals and their states when read
local TABLES = {'unfrozen', 'fields', 'as_read', 'states', 'uses', 'set', 'events',
  'rejection', 'failed', 'precedents', 'seen', 'standing'}

-- Parse a change, and add its empty fields.
local function change_of(json, body, failed_ms, keep_ms)
  local change = cjson.decode(json)
  change.body = body
  for _, name in ipairs(TABLES) do change[name] = change[name] or {} end
  change.rev, change.fires = change.rev or '', change.fires or ''
  change.before_ms, change.job = change.before_ms or 0, change.job or ''
  change.failed_ms, change.keep_ms = tonumber(failed_ms), tonumber(keep_ms)
  return change
end

-- Return whether anything changed since the computation. `added` has the amounts, by
-- window, of earlier calls in this step: each call was evaluated without the others.
local function has_moved(change, now, added)
  local head = change.head
  if redis.call('EXISTS', head) == 0 then return true end
  -- The times of the next version were computed from the read, so it must be recent.
  local age = math.abs(now - change.seen_ms)
  if (redis.call('HGET', head, 'rev') or '') ~= change.rev or age > MAX_READING_MS then
    return true
  end
  -- With the revision alone, a sweep could end a call despite its owner's heartbeat.
  if differs(head, change.as_read) then return true end
  -- Compared here, since the caller may be paused before the write arrives. The next
  -- computation finds that the deadline has passed, and reports it.
  if change.before_ms > 0 and now >= change.before_ms then return true end
  -- A tool may have been frozen since the evaluation of the claim.
  if #change.unfrozen > 0 and freeze_of(change.frozen, change.unfrozen) then return true end
  if change.fires ~= '' then
    local due = redis.call('ZSCORE', change.timers, change.id .. ' ' .. change.fires)
    if not due or now < tonumber(due) then return true end
  end
  for _, inputs in ipairs(change.uses) do
    local i = inputs.index
    -- Unchanged uses were compared at their reservation; every later call was evaluated
    -- with them in its sums.
    if inputs.rows ~= (redis.call('HGET', change.head, i .. ':w') or '[]') then
      local own = uses_of(change.head, i)
      for index, row in ipairs(cjson.decode(inputs.rows)) do
        local total, before = total_with(row[1], row[2], own, now), added[row[1]] or 0
        added[row[1]] = before + total - tonumber(slide(row[1], now))
        if total + before > tonumber(inputs.totals[index]) then return true end
      end
    end
  end
  -- A call with the same effect may have been approved by a concurrent click.
  if have_precedents_moved(change.seen) then return true end
  -- A standing approval may have been revoked since the evaluation of the claim. Its
  -- key is derived from this one, as in keys.py, and has the same hash tag.
  local base = string.match(head, '^(.+:)a:')
  for _, row in ipairs(change.standing) do
    if redis.call('HGET', base .. 'a:' .. row[1], '0:s') ~= row[2] then return true end
  end
  return false
end

-- Replace the items' uses of windows.
local function move_uses(change, now)
  local head = change.head
  for _, inputs in ipairs(change.uses) do
    local i = inputs.index
    if inputs.rows ~= (redis.call('HGET', head, i .. ':w') or '[]') then
      local expires = tonumber(end_of(head, i)) or now
      -- Before the new ones are added: both lists may contain a use, which must count.
      for _, row in ipairs(uses_of(head, i)) do release(row[1], row[2]) end
      for _, row in ipairs(cjson.decode(inputs.rows)) do
        hold(row[1], row[2], expires + change.keep_ms)
      end
      redis.call('HSET', head, i .. ':w', inputs.rows)
    end
  end
end

-- Remember rejected calls in their thread, as long as its turns are counted.
local function remember_rejected(change)
  local calls = change.rejection.calls or {}
  if #calls == 0 then return end
  -- Adds 0: reads the counter, and creates the field in which open.lua counts.
  local turns = redis.call('HINCRBY', change.rejected, 'turns', 0)
  for _, row in ipairs(calls) do
    redis.call('HSET', change.rejected, row[1], turns .. ' ' .. row[2])
  end
  redis.call('PEXPIRE', change.rejected, change.keep_ms)
end

-- Write a change with all related data, except the counter of rejections; `queued` is
-- the id of its job.
local function write_version(change, now)
  local head, id, keep = change.head, change.id, change.keep_ms
  if change.fires ~= '' then redis.call('ZREM', change.timers, id .. ' ' .. change.fires) end
  -- A corrupt record may lack a number; any new revision invalidates concurrent
  -- changes.
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
      -- Its uses may be the corrupt part: then they count until they expire.
      pcall(update_uses, head, i, state, now, expires + keep)
    else
      update_uses(head, i, state, now, expires + keep)
    end
  end
  for _, row in ipairs(change.set) do
    if row[2] == 0 then
      redis.call('ZREM', change.timers, id .. ' ' .. row[1])
    else
      redis.call('ZADD', change.timers, row[2], id .. ' ' .. row[1])
    end
  end
  if corrupt then
    -- Quarantined: with a deadline, every sweep would find it again.
    redis.call('ZREM', change.expiry, listed(id))
  else
    -- After the fields are written, since this reads them; the same applies to retain.
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
  -- The counter restarts with the pause, so that an unpaused agent has its full number
  -- of tries.
  if count >= rejection.after then
    redis.call('DEL', change.rejections)
    -- An existing pause keeps its reason, and is not announced again.
    if redis.call('HSETNX', change.frozen, rejection.name, rejection.pause) == 1 then
      announce_each(change.outbox, change.audit, {rejection.event}, now)
    end
  end
end

-- Count the rejections of one gesture, by agent, after all changes were written.
local function count_rejections(changes, now)
  local ended = {}
  for _, change in ipairs(changes) do
    -- An authorization ends the row of rejections, even in the same gesture.
    if change.rejection.ends then
      redis.call('DEL', change.rejections)
      ended[change.rejections] = true
    end
  end
  for _, change in ipairs(changes) do
    -- Calls rejected together count once: it was one decision.
    if change.rejection.calls and not ended[change.rejections] then
      count_rejection(change, now)
      ended[change.rejections] = true
    end
  end
end

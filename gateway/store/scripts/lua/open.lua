#!lua
-- Open the approvals of one turn once; a repeated call gets the first answer. Calls
-- that the policy alone allows are opened as authorized, and count neither as pending
-- nor as requests. A new card is not listed as missing: the outbox has the event until
-- the card is posted or listed.
-- From here on, the turn's reservations count by the state of their calls.
-- include records.lua
-- include lifetimes.lua
-- include windows.lua
-- include precedents.lua
-- KEYS[1] turn        string  the turn's verdicts, after a line of its approvals
-- KEYS[2] run         zset    the run's ended approvals: raw id and namespace of each
-- KEYS[3] expiry      zset    deadlines of the tenant
-- KEYS[4] outbox      stream  events
-- KEYS[5] audit       stream  audit log
-- KEYS[6] reservation string  what the turn reserved
-- KEYS[7] frozen      hash    pauses of agents; the key of the list of freezes follows from it
-- KEYS[8] waiting     zset    the agent's pending items
-- KEYS[9] requests_10m hash     the agent's recent requests for approval
-- KEYS[10] rejected   hash    rejected calls of the thread, and the turns since
-- KEYS[11] timers     zset    timers for reminders and escalations
-- KEYS[12..] records  key     head and document of each approval
-- ARGV[1] keep_ms     int     lifetime of ended approvals, milliseconds
-- ARGV[2] verdicts    text    answer for repeated submissions; "" if there are none
-- ARGV[3] events      json    array of event texts
-- ARGV[4] approvals   json    array of {id, ns, ttl_ms, state, count, timers, fields};
--                             fields are the whole head, bytes in hex, with times as of
--                             created_ms;
--                             state, of all `count` items, is pending, or authorized, which
--                             lapses after ttl_ms; timers are rows of {kind, after_ms}
-- ARGV[5] unfrozen    json    array: seal of a list of freezes without these names, and
--                             names of pauses; or none
-- ARGV[6] limits      json    {waiting, requests_10m, asked_ms} of the agent
-- ARGV[7] counted     json    rows of {window, use, within_ms} that count from now on,
--                             including calls that do not run
-- ARGV[8] refused     json    the same, for uses that no longer count
-- ARGV[9] is_reserved int     1 if the turn must have its reservation
-- ARGV[10] precedents json    rows of {key, call, kind, body, keep_ms} to note
-- ARGV[11] seen       json    rows of {key, n}: precedents that the evaluation used
-- ARGV[12] standing   json    rows of {id, as_read, checked_ms, fields} of standing approvals
--                             that cover calls: revision and seal when read, limit for the
--                             age of Slack's confirmation of the givers, and fields to write;
--                             bytes in hex
-- ARGV[13] not_rejected json   array of fingerprints of calls that must not be rejected
-- ARGV[14] created_ms int     time of creation: now, by the caller's estimate of this
--                             server's clock
-- ARGV[15..] documents bytes  document of each approval, then of each standing approval
-- Returns:
--   {"opened", older}  the run's earlier open approvals, as listed
--   {"late", now}   created_ms is over: seal the approvals with this time
--   {"exists"}      it was opened before: read its verdicts
--   {"damaged"}     it has a record, but its verdicts are missing
--   {"unreserved"}  the reservation ended during a long evaluation: evaluate again
--   {"frozen"}      there is a new freeze: evaluate again
--   {"crowded"}     the agent has too many pending items or requests: evaluate again
--   {"rejected"}    a call was rejected before in the thread: evaluate again
--   {"repeated"}    precedents have changed: evaluate again
--   {"uncovered"}   a standing approval has changed or ended: evaluate again
if redis.call('EXISTS', KEYS[1]) == 1 then return {'exists'} end
local approvals = cjson.decode(ARGV[4])
for index = 1, #approvals do
  if redis.call('EXISTS', KEYS[10 + 2 * index]) == 1 then return {'damaged'} end
end
-- Otherwise two turns under evaluation could each fit into a window with room for only
-- one.
if ARGV[9] == '1' and redis.call('EXISTS', KEYS[6]) == 0 then return {'unreserved'} end
local names = cjson.decode(ARGV[5])
if #names > 0 and freeze_of(KEYS[7], names) then return {'frozen'} end
local has_rejected = redis.call('EXISTS', KEYS[10]) == 1
for _, call in ipairs(has_rejected and cjson.decode(ARGV[13]) or {}) do
  if redis.call('HEXISTS', KEYS[10], call) == 1 then return {'rejected'} end
end
if have_precedents_moved(cjson.decode(ARGV[11])) then return {'repeated'} end

local now = now_ms()
-- Keys that are unknown to the caller, and so not in KEYS. They are derived from this
-- one, as in keys.py, and have the same hash tag.
local base, run = string.match(KEYS[2], '^(.+:)run:(%x+)$')
-- Compared in the step that counts the use: two calls never share the last one.
local standing = cjson.decode(ARGV[12])
for _, row in ipairs(standing) do
  local head = base .. 'a:' .. row.id
  local found = redis.call('HMGET', head, '0:l', '0:t', 'checked')
  -- It was in force in this revision. Only its end and Slack's confirmation can pass
  -- without a new one.
  local checked = math.max(tonumber(found[2] or '0'), tonumber(found[3] or '0'))
  if differs(head, row.as_read) or now >= tonumber(found[1] or '0')
    or now - checked > row.checked_ms then
    return {'uncovered'}
  end
end
local created = tonumber(ARGV[14])
-- The seals cover these times, and only the caller can make seals.
if #approvals > 0 and math.abs(now - created) > MAX_READING_MS then return {'late', now} end
local limits = cjson.decode(ARGV[6])
local held = 0
for _, approval in ipairs(approvals) do
  if approval.state == 'pending' then held = held + approval.count end
end
-- A turn without requests is not refused because of pending items.
if held > 0 then
  -- ZCARD also counts expired items until they are removed.
  redis.call('ZREMRANGEBYSCORE', KEYS[8], '-inf', now)
  local requests, past = asked(KEYS[9], now)
  if #past > 0 then redis.call('HDEL', KEYS[9], unpack(past)) end
  if redis.call('ZCARD', KEYS[8]) + held > limits.waiting
    or requests + held > limits.requests_10m then
    return {'crowded'}
  end
end

local keep = tonumber(ARGV[1])
-- Before this turn's approvals are added: the turn may supersede the older ones.
local opened = base .. 'open:' .. run
local older = redis.call('ZRANGE', opened, 0, -1)
for index, approval in ipairs(approvals) do
  local head, member = KEYS[10 + 2 * index], listed(approval.id)
  local expires = created + approval.ttl_ms
  local waits = approval.state == 'pending'
  write_fields(head, approval.fields)
  redis.call('SET', KEYS[11 + 2 * index], ARGV[14 + index])
  for i = 0, approval.count - 1 do
    update_uses(head, i, approval.state, now, expires + keep)
    if waits then redis.call('ZADD', KEYS[8], expires, member .. i) end
  end
  redis.call('APPEND', short_of(base, approval.id), member)
  redis.call('ZADD', KEYS[3], expires, member)
  for _, timer in ipairs(approval.timers) do
    redis.call('ZADD', KEYS[11], created + timer[2], approval.id .. ' ' .. timer[1])
  end
  redis.call('ZADD', opened, created, member .. approval.ns)
end
if #approvals > 0 then
  -- Long-ended approvals are dropped, unless an older one is still open.
  local first = tonumber(redis.call('ZRANGE', opened, 0, 0, 'WITHSCORES')[2])
  redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', '(' .. math.min(now - 4 * keep, first))
  live_on({KEYS[2], base .. 'tm:' .. run})
end
for index, row in ipairs(standing) do
  write_fields(base .. 'a:' .. row.id, row.fields)
  redis.call('SET', base .. 'p:' .. row.id, ARGV[14 + #approvals + index])
end
if held > 0 then
  until_last(KEYS[8])
  count_asked(KEYS[9], held, now, limits.asked_ms)
end
for _, row in ipairs(cjson.decode(ARGV[7])) do hold(row[1], row[2], now + row[3]) end
for _, row in ipairs(cjson.decode(ARGV[8])) do release(row[1], row[2]) end
-- From here on each use counts by the state of its call.
if ARGV[9] == '1' then redis.call('DEL', KEYS[6]) end
-- Turns are counted from the first rejection on: only the turns since then are needed.
if has_rejected then redis.call('HINCRBY', KEYS[10], 'turns', 1) end
if string.sub(ARGV[2], 1, 1) == '\n' then
  -- No approval has one of its calls: retain_turn would have to read the verdicts.
  redis.call('SET', KEYS[1], ARGV[2], 'PX', DAY_MS)
elseif ARGV[2] ~= '' then
  redis.call('SET', KEYS[1], ARGV[2])
  retain_turn(base, KEYS[1], keep)
end
-- The events and the records have the same time.
announce(KEYS[4], KEYS[5], ARGV[3], #approvals > 0 and created or now)
note_precedents(cjson.decode(ARGV[10]), now)
return {'opened', older}

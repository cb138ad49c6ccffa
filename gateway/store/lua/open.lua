#!lua
-- Open the approvals of one turn; idempotent: the same turn gets its first answer.
-- What the policy alone decided opens authorized; it waits for nobody, so it counts
-- neither as waiting nor as asked. A card is not listed as missing: the event of its
-- opening stays in the outbox until it is posted, or listed.
-- What the turn reserved counts from here on as its calls fared.
-- include records.lua
-- include lifetimes.lua
-- include windows.lua
-- include precedents.lua
-- KEYS[1] turn        string  the turn's verdicts, after a line of its approvals
-- KEYS[2] run         zset    the run's approvals that have ended, each its id raw, and namespace
-- KEYS[3] expiry      zset    deadlines of the tenant
-- KEYS[4] outbox      stream  events
-- KEYS[5] audit       stream  audit log
-- KEYS[6] reservation string  what the turn reserved
-- KEYS[7] frozen      hash    pauses of agents; the list of freezes stands beside it
-- KEYS[8] waiting     zset    the agent's pending items
-- KEYS[9] requests_10m hash     how much the agent asked people for
-- KEYS[10] rejected   hash    what was rejected in the thread, and its turns since
-- KEYS[11] timers     zset    when people are reminded and others are called
-- KEYS[12] outdated   zset    the tenant's approvals whose card is missing or old
-- KEYS[13] queue_groups set    user groups that are named in queues of people
-- KEYS[14..] records  key     head and document of each approval
-- ARGV[1] keep_ms     int     lifetime of what has ended, milliseconds
-- ARGV[2] verdicts    text    what the turn is answered with; "" where it is not submitted again
-- ARGV[3] events      json    array of event texts
-- ARGV[4] approvals   json    array of {id, ns, ttl_ms, state, count, timers,
--                             fields, queues}; fields are the whole head, bytes in hex, with
--                             the times of a creation at created_ms;
--                             queues are rows of {queue, lists, groups}, see person_queues.py;
--                             state, of all of its `count` items, is pending, or authorized, which
--                             lapses after ttl_ms; timers are rows of {kind, after_ms}
-- ARGV[5] unfrozen    json    array: seal of the list of freezes by which nothing of it is
--                             frozen, and names of pauses; or none
-- ARGV[6] limits      json    {waiting, requests_10m, asked_ms} of the agent
-- ARGV[7] counted     json    rows of {window, use, within_ms} that count from now on,
--                             also of calls that do not run
-- ARGV[8] refused     json    the same that count no longer
-- ARGV[9] is_reserved int     1 when the turn has to have its reservation
-- ARGV[10] precedents json    rows of {key, call, kind, body, keep_ms} to note
-- ARGV[11] seen       json    rows of {key, n}: precedents that the evaluation used
-- ARGV[12] standing   json    rows of {id, as_read, checked_ms, fields} of standing approvals
--                             that calls are opened by: its rev and seal as they were read, how
--                             old Slack's word on its givers may be, and what to write; bytes in
--                             hex
-- ARGV[13] not_rejected json   array of fingerprints of calls of which none was rejected
-- ARGV[14] created_ms int     when the approvals are created: now, by this server's clock, as
--                             far as the caller knows it
-- ARGV[15..] documents bytes  of each approval, then of each standing approval
-- Returns:
--   {"opened", older}  what the run lists of its earlier approvals that are open
--   {"late", now}   it is not created_ms any more: seal the approvals with this time
--   {"exists"}      it was opened before: read its verdicts
--   {"damaged"}     a record of it is there, and its verdicts are not
--   {"unreserved"}  evaluating took so long that the reservation ended: evaluate again
--   {"frozen"}      something was frozen meanwhile: evaluate again
--   {"crowded"}     the agent has or asked too much meanwhile: evaluate again
--   {"rejected"}    a call was rejected before in the thread: evaluate again
--   {"repeated"}    precedents changed meanwhile: evaluate again
--   {"uncovered"}   a standing approval changed or ended meanwhile: evaluate again
if redis.call('EXISTS', KEYS[1]) == 1 then return {'exists'} end
local approvals = cjson.decode(ARGV[4])
for index = 1, #approvals do
  if redis.call('EXISTS', KEYS[12 + 2 * index]) == 1 then return {'damaged'} end
end
-- Without it two turns that were evaluated side by side could each fit into a window that
-- has room for one.
if ARGV[9] == '1' and redis.call('EXISTS', KEYS[6]) == 0 then return {'unreserved'} end
local names = cjson.decode(ARGV[5])
if #names > 0 and freeze_of(KEYS[7], names) then return {'frozen'} end
local has_rejected = redis.call('EXISTS', KEYS[10]) == 1
for _, call in ipairs(has_rejected and cjson.decode(ARGV[13]) or {}) do
  if redis.call('HEXISTS', KEYS[10], call) == 1 then return {'rejected'} end
end
if have_precedents_moved(cjson.decode(ARGV[11])) then return {'repeated'} end

local now = now_ms()
-- Names of keys that are not in KEYS, because nobody knows them before: they follow
-- from this one, as keys.py makes them, and have the same hash tag.
local base, run = string.match(KEYS[2], '^(.+:)run:(%x+)$')
-- Compared in the step that counts the use: two calls never share the last one.
local standing = cjson.decode(ARGV[12])
for _, row in ipairs(standing) do
  local head = base .. 'a:' .. row.id
  local found = redis.call('HMGET', head, '0:l', '0:t', 'checked')
  -- Of this rev it was in force; only time, and Slack's word, pass without another one.
  local checked = math.max(tonumber(found[2] or '0'), tonumber(found[3] or '0'))
  if differs(head, row.as_read) or now >= tonumber(found[1] or '0')
    or now - checked > row.checked_ms then
    return {'uncovered'}
  end
end
local created = tonumber(ARGV[14])
-- The seals are over these times, and only a caller can make a seal.
if #approvals > 0 and math.abs(now - created) > MAX_READING_MS then return {'late', now} end
local limits = cjson.decode(ARGV[6])
local held = 0
for _, approval in ipairs(approvals) do
  if approval.state == 'pending' then held = held + approval.count end
end
-- A turn that asks people for nothing is not refused for what waits already.
if held > 0 then
  -- ZCARD counts what has ended, too, until it is removed.
  redis.call('ZREMRANGEBYSCORE', KEYS[8], '-inf', now)
  local requests, past = asked(KEYS[9], now)
  if #past > 0 then redis.call('HDEL', KEYS[9], unpack(past)) end
  if redis.call('ZCARD', KEYS[8]) + held > limits.waiting
    or requests + held > limits.requests_10m then
    return {'crowded'}
  end
end

local keep = tonumber(ARGV[1])
-- Before this turn's own are added: these are what it may supersede.
local older, first = {}, now
for index, row in ipairs(open_in(base .. 'tm:' .. run)) do
  older[index], first = row[1], math.min(first, row[2])
end
-- Where no bot works, nobody takes out what has ended.
-- 100 at most, so that no single turn pays for a long list. A turn without a card adds
-- nothing to it.
for _, card in ipairs(#approvals > 0
  and redis.call('ZRANGEBYSCORE', KEYS[12], '-inf', now, 'LIMIT', 0, 100) or {}) do
  if is_open(base .. 'a:' .. unlisted(base, card)) then
    redis.call('ZADD', KEYS[12], now + keep, card)
  else
    redis.call('ZREM', KEYS[12], card)
  end
end

for index, approval in ipairs(approvals) do
  local head, member = KEYS[12 + 2 * index], listed(approval.id)
  local expires = created + approval.ttl_ms
  local waits = approval.state == 'pending'
  write_fields(head, approval.fields)
  redis.call('SET', KEYS[13 + 2 * index], ARGV[14 + index])
  for i = 0, approval.count - 1 do
    update_uses(head, i, approval.state, now, expires + keep)
    if waits then redis.call('ZADD', KEYS[8], expires, member .. i) end
  end
  if waits then enter_queues(approval.queues, approval.id, expires, KEYS[13]) end
  list_short(base, approval.id, created)
  know_short(base, approval.id, created, expires + 4 * keep)
  redis.call('ZADD', KEYS[3], expires, member)
  for _, timer in ipairs(approval.timers) do
    redis.call('ZADD', KEYS[11], created + timer[2], approval.id .. ' ' .. timer[1])
  end
  enter_run(base .. 'tm:' .. run, approval.id, approval.ns, created)
end
if #approvals > 0 then
  -- What ended so long ago is kept no longer, unless something older is still open.
  redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', '(' .. math.min(now - 4 * keep, first))
  redis.call('PERSIST', KEYS[2])
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
-- Turns are counted from the first rejection on: only "so many turns ago" is asked.
if has_rejected then redis.call('HINCRBY', KEYS[10], 'turns', 1) end
if string.sub(ARGV[2], 1, 1) == '\n' then
  -- No approval has a call of it: see retain_turn, which would read it back.
  redis.call('SET', KEYS[1], ARGV[2], 'PX', DAY_MS)
elseif ARGV[2] ~= '' then
  redis.call('SET', KEYS[1], ARGV[2])
  retain_turn(base, KEYS[1], keep)
end
-- Of what opens, events and records tell the same time.
announce(KEYS[4], KEYS[5], ARGV[3], #approvals > 0 and created or now)
note_precedents(cjson.decode(ARGV[10]), now)
return {'opened', older}

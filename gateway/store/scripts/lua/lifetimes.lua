-- Lifetimes of keys. script.py inserts this after the prelude of a script that includes
-- it.
-- Data in use never expires; ended data has a lifetime. An approval is in use while one
-- of its items is open: people, an executor or the clock may still change it. An item
-- in doubt is open until people reconcile it, however long that takes.
local OPEN = {pending = true, authorized = true, executing = true, in_doubt = true}

local function is_open(head)
  -- An expired approval has no `n`: none of its items is open.
  local n, first = unpack(redis.call('HMGET', head, 'n', '0:s'))
  n = tonumber(n) or 0
  if n > 0 and OPEN[first] then return true end
  for i = 1, n - 1 do
    if OPEN[redis.call('HGET', head, i .. ':s')] then return true end
  end
  return false
end

-- Remove the lifetimes of keys, or set them, in milliseconds.
local function live_on(keys, keep)
  for _, key in ipairs(keys) do
    if keep then redis.call('PEXPIRE', key, keep) else redis.call('PERSIST', key) end
  end
end

-- Give keys the lifetime of their approval.
local function live_as_long_as(record, keys, keep)
  local left = redis.call('PTTL', record)
  -- -1: the approval is open and has no lifetime. -2: it is missing; then use keep_ms.
  if left == -1 then
    live_on(keys)
  else
    live_on(keys, left > 0 and left or keep)
  end
end

-- Split the key of an approval's head: the tenant's base and the id.
local function split(record)
  return string.match(record, '^(.+:)%a:([^:]+)$')
end

-- The key of a string of raw approval ids, to find them by short id: one for each day
-- and first digit, so that each string stays short enough to search.
local function ids_of(base, day, digits)
  return base .. 'ids:' .. string.format('%.0f', day) .. ':' .. string.sub(digits, 1, 1)
end

-- List an approval by its short id, under the day of its creation.
local function list_short(base, id, created)
  local digits = string.match(id, '[^_]*$')
  redis.call('APPEND', ids_of(base, math.floor(created / DAY_MS), digits), listed(id))
end

-- Extend the lifetime of an approval's short id. Its list is shared, so it never ends
-- earlier than before.
local function know_short(base, id, created, till)
  local ids = ids_of(base, math.floor(created / DAY_MS), string.match(id, '[^_]*$'))
  -- -1: the list is new and has no lifetime. A difference of a day is ignored, which
  -- saves most writes.
  if redis.call('PTTL', ids) < till - now_ms() - DAY_MS then
    redis.call('PEXPIREAT', ids, string.format('%.0f', till))
  end
end

-- Keys with an approval's lifetime: its card's place in Slack, and reviewers' progress
-- through its full view.
local function attached(record)
  local base, id = split(record)
  local card = base .. 'card:' .. id
  local keys = {card, base .. 'seen_by:' .. id}
  -- A card posted twice (after a lost reply of Slack) has a string for each message.
  -- They are not in KEYS, because only the card's hash has their names. All have the
  -- tenant's hash tag, so a cluster stores them on one node.
  for _, field in ipairs(redis.call('HKEYS', card)) do
    if string.sub(field, 1, 3) == 'at:' then keys[#keys + 1] = base .. field end
  end
  return keys
end

-- Limit of the list of a run's answers.
local MOST_ANSWERED = 10

-- Keep the verdicts of a turn while an approval with one of its calls is open. A turn
-- without approvals is only submitted again by a process that takes it over.
local function retain_turn(base, turn, keep)
  local needed, is_auto = false, true
  -- The first line has its approvals; the rest is packed.
  local line = string.match(redis.call('GET', turn) or '', '^[^\n]*')
  for id in string.gmatch(line, 'ap_[%l%d_-]+') do
    needed, is_auto = needed or is_open(base .. 'a:' .. id), false
  end
  if is_auto then keep = DAY_MS end
  -- False as a lifetime: none, see live_on.
  live_on({turn}, not needed and keep)
end

-- Return an approval's run, its turn if that has a key (both as in their key names),
-- and its namespace. Empty for a damaged record.
local function belongs_to(head)
  local run, turn = unpack(redis.call('HMGET', head, 'run', 'turn'))
  if not run or #run < 16 then return nil end
  return to_hex(string.sub(run, 1, 16)), turn and to_hex(turn), string.sub(run, 17)
end

-- A run's open approvals are one field of its thread's facts: a row for each, oldest
-- first, with the time of creation, the id, the length of the namespace, and the
-- namespace. Returns rows of {id and namespace, time}.
local function open_in(facts)
  local text, found, at = redis.call('HGET', facts, 'open') or '', {}, 1
  while at + 23 <= #text do
    local created, id, size = struct.unpack('>I6c16I2', text, at)
    found[#found + 1] = {id .. string.sub(text, at + 24, at + 23 + size), created}
    at = at + 24 + size
  end
  return found
end

-- Keep a thread's facts while its run is active or has an open approval.
local function retain_facts(facts, keep)
  local run, open = unpack(redis.call('HMGET', facts, 'run', 'open'))
  live_on({facts}, not run and not open and keep)
end

-- Add an approval to the open ones of its run.
local function enter_run(facts, id, ns, created)
  local row = struct.pack('>I6c16I2', created, listed(id), #ns) .. ns
  redis.call('HSET', facts, 'open', (redis.call('HGET', facts, 'open') or '') .. row)
  redis.call('PERSIST', facts)
end

-- Remove it from them; return whether it was there.
local function leave_run(base, run, id, ns, keep)
  local facts = base .. 'tm:' .. run
  local text = redis.call('HGET', facts, 'open') or ''
  -- Searched instead of parsed: the field may be long, and ids are unique.
  local row = struct.pack('>c16I2', listed(id), #ns) .. ns
  local at = string.find(text, row, 7, true)
  if not at then return false end
  local left = string.sub(text, 1, at - 7) .. string.sub(text, at + #row)
  if left == '' then
    redis.call('HDEL', facts, 'open')
    retain_facts(facts, keep)
  else
    redis.call('HSET', facts, 'open', left)
  end
  return true
end

-- After every write: set the lifetimes of an approval and its run. If a damaged record
-- names neither run nor turn, their lifetimes stay.
local function retain(head, document, keep)
  local base, id = split(head)
  local needed = is_open(head)
  -- A record that stays open has no lifetime, and neither have its other keys, which
  -- get their lifetimes together, see `live_as_long_as`.
  if not needed or redis.call('PTTL', head) >= 0 then
    live_on({head, document}, not needed and keep)
    live_on(attached(head), not needed and keep)
  end
  -- Also while it is open: deadlines, doubts and reminders are closer together.
  local created = tonumber(redis.call('HGET', head, 'created')) or 0
  know_short(base, id, created, now_ms() + 4 * keep)
  if needed then return end
  local run, turn, ns = belongs_to(head)
  if not run then return end
  if leave_run(base, run, id, ns, keep) then
    redis.call('ZADD', base .. 'run:' .. run, created, listed(id) .. ns)
    -- Listed for a day: the run's next calls are shown together with such answers.
    if redis.call('HGET', head, '0:s') == 'answered' then
      local answered = base .. 'answered:' .. run
      redis.call('ZADD', answered, created, listed(id) .. ns)
      redis.call('ZREMRANGEBYRANK', answered, 0, -1 - MOST_ANSWERED)
      redis.call('PEXPIRE', answered, DAY_MS)
    end
  end
  if turn then retain_turn(base, base .. 'turn:' .. turn, keep) end
  local is_over = redis.call('HEXISTS', base .. 'tm:' .. run, 'open') == 0
  live_on({base .. 'run:' .. run}, is_over and keep)
end

-- Keep a thread's facts until its run has ended. Facts marked "new" may lack an earlier
-- past of the thread: only the process that runs it can check that.
local function begin_run(facts)
  -- The list of open approvals does not contain the requesters.
  if redis.call('HLEN', facts) == redis.call('HEXISTS', facts, 'open') then
    redis.call('HSET', facts, 'run', 'new')
  elseif redis.call('HGET', facts, 'run') ~= 'new' then
    redis.call('HSET', facts, 'run', 'open')
  end
  redis.call('PERSIST', facts)
end

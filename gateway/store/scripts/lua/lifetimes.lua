-- Lifetimes of keys. script.py inserts this after the prelude of a script that includes
-- it.
-- Data in use never expires; ended data has a lifetime. An approval is in use while one
-- of its items is open: people, an executor or the clock may still change it. An item
-- in doubt is open until people reconcile it, however long that takes.
local OPEN = {pending = true, authorized = true, executing = true, in_doubt = true,
  handing_over = true}

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

-- The key of the approvals with a short id: the first eight digits of its random half.
local function short_of(base, id)
  return base .. 'short:' .. string.sub(string.match(id, '[^_]*$'), 1, 8)
end

-- Keys with an approval's lifetime: its card's place in Slack, reviewers' progress
-- through its full view, and its short id. Another approval with the same short id is
-- so rare that their lifetimes are not compared.
local function attached(record)
  local base, id = split(record)
  local card = base .. 'card:' .. id
  local keys = {card, base .. 'seen_by:' .. id, short_of(base, id)}
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

-- Return whether the run of a thread has open approvals. Their key is derived from the
-- one of the thread's facts, as in keys.py, and has the same hash tag.
local function has_open(facts)
  return redis.call('EXISTS', (string.gsub(facts, ':tm:', ':open:'))) == 1
end

-- Keep a thread's facts while its run is active or has an open approval.
local function retain_facts(facts, keep)
  local is_needed = redis.call('HEXISTS', facts, 'run') == 1 or has_open(facts)
  live_on({facts}, not is_needed and keep)
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
  if needed then return end
  local run, turn, ns = belongs_to(head)
  if not run then return end
  local member, created = listed(id) .. ns, redis.call('HGET', head, 'created') or 0
  if redis.call('ZREM', base .. 'open:' .. run, member) == 1 then
    redis.call('ZADD', base .. 'run:' .. run, created, member)
    -- Listed for a day: the run's next calls are shown together with such answers.
    if redis.call('HGET', head, '0:s') == 'answered' then
      local answered = base .. 'answered:' .. run
      redis.call('ZADD', answered, created, member)
      redis.call('ZREMRANGEBYRANK', answered, 0, -1 - MOST_ANSWERED)
      redis.call('PEXPIRE', answered, DAY_MS)
    end
  end
  if turn then retain_turn(base, base .. 'turn:' .. turn, keep) end
  local facts = base .. 'tm:' .. run
  live_on({base .. 'run:' .. run}, not has_open(facts) and keep)
  retain_facts(facts, keep)
end

-- Keep a thread's facts until its run has ended. Facts marked "new" may lack an earlier
-- past of the thread: only the process that runs it can check that.
local function begin_run(facts)
  if redis.call('EXISTS', facts) == 0 then
    redis.call('HSET', facts, 'run', 'new')
  elseif redis.call('HGET', facts, 'run') ~= 'new' then
    redis.call('HSET', facts, 'run', 'open')
  end
  redis.call('PERSIST', facts)
end

-- How long keys live. script.py puts this behind the prelude of a script that includes
-- it.
-- One rule for every lifetime: what is still needed has none, and what has ended has one.
-- An approval is needed while an item of it is open: people, an executor or the clock
-- may still change it. A doubt is open until people reconcile it, however long that takes.
local OPEN = {pending = true, authorized = true, executing = true, in_doubt = true}

local function is_open(head)
  -- An approval that is kept no longer has no `n`: nothing of it is open.
  local n, first = unpack(redis.call('HMGET', head, 'n', '0:s'))
  n = tonumber(n) or 0
  if n > 0 and OPEN[first] then return true end
  for i = 1, n - 1 do
    if OPEN[redis.call('HGET', head, i .. ':s')] then return true end
  end
  return false
end

-- Take the lifetime of keys away, or give them one from now on, in milliseconds.
local function live_on(keys, keep)
  for _, key in ipairs(keys) do
    if keep then redis.call('PEXPIRE', key, keep) else redis.call('PERSIST', key) end
  end
end

-- Give keys the lifetime of the approval that they belong to.
local function live_as_long_as(record, keys, keep)
  local left = redis.call('PTTL', record)
  -- -1: the approval is open and lives on. -2 is no approval; then keep counts.
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

-- The key of a text that lists the ids of approvals, raw, by which a short id finds them:
-- one for each day of opening and first digit, so that none becomes too long to search.
local function ids_of(base, day, digits)
  return base .. 'ids:' .. string.format('%.0f', day) .. ':' .. string.sub(digits, 1, 1)
end

-- List an approval that was opened at a moment for its short id.
local function list_short(base, id, created)
  local digits = string.match(id, '[^_]*$')
  redis.call('APPEND', ids_of(base, math.floor(created / DAY_MS), digits), listed(id))
end

-- Let the short id of an approval be known until a moment, at least. It shares its list
-- with others, so nothing makes that end sooner.
local function know_short(base, id, created, till)
  local ids = ids_of(base, math.floor(created / DAY_MS), string.match(id, '[^_]*$'))
  -- Without a lifetime, -1, too: it has just been made. A day more or less is nothing to
  -- so long a life, and spares most writes.
  if redis.call('PTTL', ids) < till - now_ms() - DAY_MS then
    redis.call('PEXPIREAT', ids, string.format('%.0f', till))
  end
end

-- What lives as long as an approval: where its card stands in Slack, and what reviewers
-- have read of it.
local function attached(record)
  local base, id = split(record)
  local card = base .. 'card:' .. id
  local keys = {card, base .. 'seen_by:' .. id}
  -- A card that was posted twice (an answer of Slack got lost) has a text for each
  -- copy. They are not in KEYS, because only the card knows them; all have the tenant's
  -- hash tag, so a cluster keeps them on one node.
  for _, field in ipairs(redis.call('HKEYS', card)) do
    if string.sub(field, 1, 3) == 'at:' then keys[#keys + 1] = base .. field end
  end
  return keys
end

-- How many answers of a run are listed apart.
local MOST_ANSWERED = 10

-- Keep the verdicts of a turn while an approval that holds one of its calls is open; a
-- turn without any is asked about again only by a process that takes it over.
local function retain_turn(base, turn, keep)
  local needed, is_auto = false, true
  -- The first line names its approvals; what follows is packed.
  local line = string.match(redis.call('GET', turn) or '', '^[^\n]*')
  for id in string.gmatch(line, 'ap_[%l%d_-]+') do
    needed, is_auto = needed or is_open(base .. 'a:' .. id), false
  end
  if is_auto then keep = DAY_MS end
  -- False as a lifetime: none, see live_on.
  live_on({turn}, not needed and keep)
end

-- Return of which run an approval is, of which turn where that has a key of its own, both
-- as their keys name them, and its namespace. Nothing of a damaged record.
local function belongs_to(head)
  local run, turn = unpack(redis.call('HMGET', head, 'run', 'turn'))
  if not run or #run < 16 then return nil end
  return to_hex(string.sub(run, 1, 16)), turn and to_hex(turn), string.sub(run, 17)
end

-- What a run has open stands in one field with the facts of its thread: a row for each
-- approval, oldest first, of when it was opened, its id, how long its namespace is, and
-- that. Returns rows of {id and namespace, when}.
local function open_in(facts)
  local text, found, at = redis.call('HGET', facts, 'open') or '', {}, 1
  while at + 23 <= #text do
    local created, id, size = struct.unpack('>I6c16I2', text, at)
    found[#found + 1] = {id .. string.sub(text, at + 24, at + 23 + size), created}
    at = at + 24 + size
  end
  return found
end

-- Facts of a thread live on while its run goes on or has something open.
local function retain_facts(facts, keep)
  local run, open = unpack(redis.call('HMGET', facts, 'run', 'open'))
  live_on({facts}, not run and not open and keep)
end

-- Let an approval be open in its run.
local function enter_run(facts, id, ns, created)
  local row = struct.pack('>I6c16I2', created, listed(id), #ns) .. ns
  redis.call('HSET', facts, 'open', (redis.call('HGET', facts, 'open') or '') .. row)
  redis.call('PERSIST', facts)
end

-- Let it no longer be; return whether it was.
local function leave_run(base, run, id, ns, keep)
  local facts = base .. 'tm:' .. run
  local text = redis.call('HGET', facts, 'open') or ''
  -- Searched and not parsed: a run may have very much open, and an id is nowhere twice.
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

-- After every write: keep an approval, and what its run needs while it is open. Where
-- a damaged record names neither run nor turn, these keep the lifetimes that they have.
local function retain(head, document, keep)
  local base, id = split(head)
  local needed = is_open(head)
  -- One that was open and is has no lifetime, and what belongs to it has none, either:
  -- all of it got and gets that together, see `live_as_long_as`.
  if not needed or redis.call('PTTL', head) >= 0 then
    live_on({head, document}, not needed and keep)
    live_on(attached(head), not needed and keep)
  end
  -- Also of one that is open: no deadline, doubt or reminder is so far apart.
  local created = tonumber(redis.call('HGET', head, 'created')) or 0
  know_short(base, id, created, now_ms() + 4 * keep)
  if needed then return end
  local run, turn, ns = belongs_to(head)
  if not run then return end
  if leave_run(base, run, id, ns, keep) then
    redis.call('ZADD', base .. 'run:' .. run, created, listed(id) .. ns)
    -- Listed apart for a day: the run's next calls are shown beside such answers.
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

-- Keep the facts of a thread until its run has ended. What is "new" has none from
-- before: whether the thread itself has a past, only who runs it can see.
local function begin_run(facts)
  -- What is open in it tells nothing of who asked.
  if redis.call('HLEN', facts) == redis.call('HEXISTS', facts, 'open') then
    redis.call('HSET', facts, 'run', 'new')
  elseif redis.call('HGET', facts, 'run') ~= 'new' then
    redis.call('HSET', facts, 'run', 'open')
  end
  redis.call('PERSIST', facts)
end

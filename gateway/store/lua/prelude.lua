-- Functions that all scripts share; script.py puts them behind the first line of each.
-- The server's clock and no process's: all deadlines are compared with this one. Redis
-- replicates what a script wrote, not the script, so a clock in it is safe. A script is
-- run at one moment.
local NOW = nil
local function now_ms()
  if NOW == nil then
    local time = redis.call('TIME')
    NOW = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
  end
  return NOW
end

local function to_hex(raw)
  return (string.gsub(raw, '.', function(byte)
    return string.format('%02x', string.byte(byte))
  end))
end

-- Return the 16 bytes that 32 hex digits stand for, from a place in a text on.
local function bytes_at(text, at)
  local number, digits = tonumber, string.sub
  return struct.pack('>I4I4I4I4', number(digits(text, at, at + 7), 16),
    number(digits(text, at + 8, at + 15), 16), number(digits(text, at + 16, at + 23), 16),
    number(digits(text, at + 24, at + 31), 16))
end

-- Nearly all that comes in hex are ids and seals of 16 bytes. Byte by byte it would take
-- four times as long, and most scripts do it several times.
local function from_hex(text)
  if #text == 32 then return bytes_at(text, 1) end
  local found, whole = {}, #text - #text % 32
  for at = 1, whole, 32 do found[#found + 1] = bytes_at(text, at) end
  found[#found + 1] = string.gsub(string.sub(text, whole + 1), '..', function(pair)
    return string.char(tonumber(pair, 16))
  end)
  return table.concat(found)
end

-- An approval stands in sorted sets by the random half of its id, raw: one that waits is
-- in half a dozen of them, so what was worked out is kept for the rest of the script.
local LISTED = {}
local function listed(id)
  local found = LISTED[id] or from_hex(string.match(id, '[^_]*$'))
  LISTED[id] = found
  return found
end

-- Return the id that `listed` was made of; the shard is that of the keys.
local function unlisted(base, member)
  return 'ap_' .. string.match(base, '{(.-)}') .. '_' .. to_hex(member)
end

-- Write an event and its seal to the outbox or to the audit log.
local function write_sealed(stream, text, seal, now)
  redis.call('XADD', stream, '*', 'e', text, 'at', now, 's', seal)
end

-- Write an event to the outbox or to the audit log: a text and its seal, behind a newline.
local function write_event(stream, event, now)
  local at = string.find(event, '\n', 1, true)
  write_sealed(stream, string.sub(event, 1, at - 1), string.sub(event, at + 1), now)
end

-- Write events (texts with their seals) to the outbox and to the audit log.
-- The outbox has no fixed length: a sweep drops what every reader has acknowledged.
-- Two streams, because they are trimmed differently: the outbox by what its readers
-- have read, the audit log by age.
local function announce_each(outbox, audit, events, now)
  for _, event in ipairs(events) do
    write_event(outbox, event, now)
    write_event(audit, event, now)
  end
end

-- Write events that are given as a JSON array.
local function announce(outbox, audit, events, now)
  announce_each(outbox, audit, cjson.decode(events), now)
end

-- Queue a job (JSON) that brings the agent back, and return its id; an empty text queues
-- nothing.
local function enqueue(jobs, job)
  if job ~= '' then
    return redis.call('XADD', jobs, '*', 'j', job)
  end
end

-- When the wait of an item ends: a call that was raised or asked anew has its own end.
local function end_of(head, i)
  return redis.call('HGET', head, i .. ':e') or redis.call('HGET', head, 'expires')
end

-- Keep the deadline index true: the earliest of the expiry of each pending item,
-- the lapse of an unused authorization, and the end of a claim without a heartbeat.
local function reindex(head, expiry, id, now)
  local due = nil
  local function consider(at)
    at = tonumber(at or '0')
    if at > 0 and (due == nil or at < due) then due = at end
  end
  for i = 0, tonumber(redis.call('HGET', head, 'n')) - 1 do
    local item = redis.call('HMGET', head, i .. ':s', i .. ':l', i .. ':u')
    local state = item[1]
    if state == 'pending' then
      consider(end_of(head, i))
    elseif state == 'authorized' then
      consider(item[2])
    elseif state == 'executing' then
      -- The next process that asks for a claim finds that it has ended.
      -- Listed again, an idempotent call that stays executing would be swept for ever.
      local ends = tonumber(item[3] or '0')
      if ends > now then consider(ends) end
    end
  end
  if due then
    redis.call('ZADD', expiry, due, listed(id))
  else
    redis.call('ZREM', expiry, listed(id))
  end
end

-- How long the verdicts of a turn are kept that needed no record, and what is listed of
-- answers, in milliseconds.
local DAY_MS = 24 * 60 * 60 * 1000
local MOST_ANSWERED = 10

-- How old a reading may be that a change is computed from, in milliseconds.
-- A process may be paused between its reading and its write. It is less than the life
-- of a lease (15 s), so a claim that is computed from the reading has not ended when it
-- is written.
local MAX_READING_MS = 10000

-- How many fields one command names: Lua passes about 8,000 arguments at most.
local MOST_FIELDS = 1000

-- Call a command with a key and these arguments, in as few calls as there can be.
local function call_with(command, key, arguments)
  for at = 1, #arguments, MOST_FIELDS do
    local last = math.min(#arguments, at + MOST_FIELDS - 1)
    redis.call(command, key, unpack(arguments, at, last))
  end
end

-- Fields of a record's head that are bytes: they come in hex.
local RAW = {h = true, quarantine_seal = true, dk = true, run = true, turn = true, parts = true}

-- Kinds of fields whose texts may be encrypted: then they come in hex behind this mark,
-- see record_encryption.py.
local ENCRYPTED, ENCRYPTED_MARK = {d = true, r = true, late = true, acknowledged = true,
  remarks = true, inquiries = true, uses = true}, '\030'

-- Write fields of a hash, and delete those that are false.
local function write_fields(key, fields)
  local written, deleted = {}, {}
  for field, value in pairs(fields) do
    -- False and not null: cjson decodes null to a value that Lua takes for true.
    if not value then
      deleted[#deleted + 1] = field
    else
      if RAW[field] then
        value = from_hex(value)
      elseif ENCRYPTED[string.match(field, '[^:]*$')]
        and string.sub(value, 1, 1) == ENCRYPTED_MARK then
        value = ENCRYPTED_MARK .. from_hex(string.sub(value, 2))
      end
      written[#written + 1] = field
      written[#written + 1] = value
    end
  end
  call_with('HDEL', key, deleted)
  call_with('HSET', key, written)
end

-- Return whether a field of a hash is not what these say; "" is for one that is not there.
local function differs(key, fields)
  local names = {}
  for field in pairs(fields) do names[#names + 1] = field end
  for at = 1, #names, MOST_FIELDS do
    local last = math.min(#names, at + MOST_FIELDS - 1)
    local found = redis.call('HMGET', key, unpack(names, at, last))
    for index, value in ipairs(found) do
      local field = names[at + index - 1]
      local wanted = fields[field]
      if RAW[field] then wanted = from_hex(wanted) end
      if (value or '') ~= wanted then return true end
    end
  end
  return false
end

-- What an agent asks people for is counted in steps of so long, each under the moment
-- when it ends to count: a request counts up to this much longer, never less.
local ASKED_STEP_MS = 10000

-- Return how many requests count now, and the steps that do not any more.
local function asked(requests, now)
  local count, past, rows = 0, {}, redis.call('HGETALL', requests)
  for index = 1, #rows, 2 do
    if now < tonumber(rows[index]) then
      count = count + tonumber(rows[index + 1])
    else
      past[#past + 1] = rows[index]
    end
  end
  return count, past
end

-- Let so many requests count from now on.
local function count_asked(requests, count, now, asked_ms)
  local step = (math.floor(now / ASKED_STEP_MS) + 1) * ASKED_STEP_MS + asked_ms
  redis.call('HINCRBY', requests, string.format('%.0f', step), count)
  redis.call('PEXPIREAT', requests, step)
end

-- Let a sorted set of deadlines live until a day after the last of them: what has passed
-- its deadline waits until a sweep ends it, and a sweep may be late.
local function until_last(deadlines)
  local last = redis.call('ZREVRANGE', deadlines, 0, 0, 'WITHSCORES')[2]
  if last then
    redis.call('PEXPIREAT', deadlines, string.format('%.0f', tonumber(last) + DAY_MS))
  end
end

-- Put an approval into queues of people, see person_queues.py; rows are {queue, lists,
-- groups}. The keys are not in KEYS: they follow from the record, and have its hash tag.
local function enter_queues(rows, id, due, all_groups)
  for _, row in ipairs(rows) do
    -- Listed in the step that adds the first one: what waits is never without a name.
    if redis.call('EXISTS', row[1]) == 0 then
      for _, list in ipairs(row[2]) do redis.call('SADD', list, row[1]) end
      for _, group in ipairs(row[3]) do redis.call('SADD', all_groups, group) end
    end
    redis.call('ZADD', row[1], due, listed(id))
    until_last(row[1])
  end
end

-- A window is a sorted set of uses by the moment they end to count, and beside it the
-- running sum, so that no script ever adds up a window. A use is a text: which call,
-- a blank, how much in millionths. The amount is never read as a Lua number where it
-- is added: the sum stays exact.
local function amount_of(use)
  return string.match(use, ' (%d+)$')
end

-- A window lives until its last use ends to count.
local function outlive(window)
  local last = redis.call('ZREVRANGE', window, 0, 0, 'WITHSCORES')[2]
  if last then
    redis.call('PEXPIREAT', window, last)
    -- Set and sum have to end together: a sum that outlives its uses would count for
    -- ever, and uses without their sum would be subtracted from nothing.
    redis.call('PEXPIREAT', window .. ':sum', last)
  else
    redis.call('DEL', window .. ':sum')
  end
end

-- How many uses one look at a window forgets. The others count until the next looks: a
-- window that a million uses leave at once says too much for a while, never too little.
local MOST_FORGOTTEN = 10000

-- Forget uses that no longer count; return the sum (text) of those that do.
local function slide(window, now)
  -- `now` is included: a use counts until its moment, not in it.
  local past = redis.call('ZRANGEBYSCORE', window, '-inf', now, 'LIMIT', 0, MOST_FORGOTTEN)
  for _, use in ipairs(past) do
    redis.call('DECRBY', window .. ':sum', amount_of(use))
  end
  if #past > 0 then
    redis.call('ZREMRANGEBYRANK', window, 0, #past - 1)
    outlive(window)
  end
  return redis.call('GET', window .. ':sum') or '0'
end

-- Let a use count until a moment; one that counts already keeps its amount.
local function hold(window, use, till)
  -- A submit that is repeated, because its answer got lost, holds the same use again.
  if not redis.call('ZSCORE', window, use) then
    redis.call('INCRBY', window .. ':sum', amount_of(use))
  end
  redis.call('ZADD', window, till, use)
  outlive(window)
end

-- Let a use no longer count.
local function release(window, use)
  -- Only what was there is subtracted, so releasing a use twice changes nothing.
  if redis.call('ZREM', window, use) == 1 then
    redis.call('DECRBY', window .. ':sum', amount_of(use))
    outlive(window)
  end
end

-- What item i has reserved: rows of {window, use, within_ms}.
local function uses_of(head, i)
  return cjson.decode(redis.call('HGET', head, i .. ':w') or '[]')
end

local UNEXECUTED = {rejected = true, answered = true, expired = true,
  superseded = true, withdrawn = true, lapsed = true}

-- A moment that never comes: an authorized call may run, or have run, until it ends.
-- Below 2^53, so that it is exact as a score, and a moment that PEXPIREAT takes.
local WHILE_OPEN = 9e15

-- Keep an item's uses true to the state it reached: they count while it may still
-- run, and for the window's length after it ran; what never ran counts no longer.
-- Those of a pending item count beyond its deadline, till a moment.
local function update_uses(head, i, state, now, till)
  for _, row in ipairs(uses_of(head, i)) do
    if UNEXECUTED[state] then
      release(row[1], row[2])
    elseif state == 'executed' or state == 'failed' then
      hold(row[1], row[2], now + row[3])
    else
      -- A sweep that is late must not free a share of a call that may still be
      -- approved.
      hold(row[1], row[2], state == 'pending' and till or WHILE_OPEN)
    end
  end
end

-- What a window would come to with this use instead of what the same item has of it.
local function total_with(window, use, own, now, sum)
  local total = tonumber(sum or slide(window, now)) + tonumber(amount_of(use))
  for _, row in ipairs(own) do
    -- A use that slid out of the window is not in the sum any more.
    if row[1] == window and redis.call('ZSCORE', window, row[2]) then
      total = total - tonumber(amount_of(row[2]))
    end
  end
  return total
end

-- Return whether the sealed list of freezes is another one than a process verified, by
-- its seal in hex; "" for none. See freeze_list.py: the list begins with a mark of one byte.
local function has_other_list(frozen, seal)
  local list = redis.call('GET', frozen .. '_sealed')
  return (list and string.sub(list, 2, 17) or '') ~= from_hex(seal)
end

-- Return whether something is frozen under one of these names, behind the seal of the
-- list of freezes by which none of them is; also when the store has another list.
local function freeze_of(frozen, names)
  if has_other_list(frozen, names[1]) then return true end
  -- Callers make sure that there is a name: HMGET without one is an error.
  for _, body in ipairs(redis.call('HMGET', frozen, unpack(names, 2))) do
    if body then return true end
  end
  return false
end

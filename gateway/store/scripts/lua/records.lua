-- Fields and indexes of a record. script.py inserts this after the prelude of a script
-- that includes it.

-- End of an item's wait: an escalated or renewed request has a separate end.
local function end_of(head, i)
  return redis.call('HGET', head, i .. ':e') or redis.call('HGET', head, 'expires')
end

-- Update the index of deadlines: the earliest of the expiry of each pending item,
-- the lapse of an unused authorization, and the end of a claim without a heartbeat. A
-- claim to hand over may be repeated until its authorization lapses.
local function reindex(head, expiry, id, now)
  local due = nil
  local function consider(at)
    at = tonumber(at or '0')
    if at > 0 and (due == nil or at < due) then due = at end
  end
  for i = 0, tonumber(redis.call('HGET', head, 'n')) - 1 do
    local state = redis.call('HGET', head, i .. ':s')
    if state == 'pending' then
      consider(end_of(head, i))
    elseif state == 'authorized' then
      consider(redis.call('HGET', head, i .. ':l'))
    elseif state == 'executing' then
      -- The next process that requests a claim finds that it has ended. If it stayed
      -- listed, an idempotent call in execution would be swept forever.
      local ends = tonumber(redis.call('HGET', head, i .. ':u') or '0')
      if ends > now then consider(ends) end
    elseif state == 'handing_over' then
      local lapses, ends = unpack(redis.call('HMGET', head, i .. ':l', i .. ':u'))
      consider(math.max(tonumber(lapses or '0'), tonumber(ends or '0')))
    elseif state == 'not_taken' then
      -- Set while a person waits for the agent to ask again.
      consider(redis.call('HGET', head, i .. ':l'))
    end
  end
  if due then
    redis.call('ZADD', expiry, due, listed(id))
  else
    redis.call('ZREM', expiry, listed(id))
  end
end

-- Age limit of the read on which a change is based, in milliseconds. A process may be
-- paused between its read and its write. The limit is less than a lease (15 s), so a
-- claim computed from the read has not ended when it is written.
local MAX_READING_MS = 10000

-- Binary fields of a record's head, passed in hex.
local RAW = {h = true, quarantine_seal = true, dk = true, run = true, turn = true}

-- Write fields of a hash, and delete those that are false.
local function write_fields(key, fields)
  local written, deleted = {}, {}
  for field, value in pairs(fields) do
    -- False, not null: cjson decodes null to a value that is true in Lua.
    if not value then
      deleted[#deleted + 1] = field
    else
      written[#written + 1] = field
      written[#written + 1] = RAW[field] and from_hex(value) or value
    end
  end
  -- An approval has at most 99 items, and Lua passes some thousand arguments.
  if #deleted > 0 then redis.call('HDEL', key, unpack(deleted)) end
  if #written > 0 then redis.call('HSET', key, unpack(written)) end
end

-- Return whether fields of a hash differ from these values; "" means a missing field.
local function differs(key, fields)
  for field, wanted in pairs(fields) do
    if RAW[field] then wanted = from_hex(wanted) end
    if (redis.call('HGET', key, field) or '') ~= wanted then return true end
  end
  return false
end

-- Keep a sorted set of deadlines until a day after the last one: items past their
-- deadline wait for a sweep, which may be late.
local function until_last(deadlines)
  local last = redis.call('ZREVRANGE', deadlines, 0, 0, 'WITHSCORES')[2]
  if last then
    redis.call('PEXPIREAT', deadlines, string.format('%.0f', tonumber(last) + DAY_MS))
  end
end

-- Functions of all scripts; script.py inserts them after the first line of each. All
-- deadlines are compared with the server's clock, which stays fixed during a script.
-- Redis replicates the writes of a script, not the script, so reading the clock is
-- safe.
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

local function from_hex(text)
  return (string.gsub(text, '..', function(pair)
    return string.char(tonumber(pair, 16))
  end))
end

-- The member of an approval in sorted sets is the random half of its id, raw.
local function listed(id)
  return from_hex(string.match(id, '[^_]*$'))
end

-- Write an event to the outbox or to the audit log: a text and its seal, after a
-- newline.
local function write_event(stream, event, now)
  local at = string.find(event, '\n', 1, true)
  local text, seal = string.sub(event, 1, at - 1), string.sub(event, at + 1)
  redis.call('XADD', stream, '*', 'e', text, 'at', now, 's', seal)
end

-- Write events (texts with their seals) to the outbox and to the audit log. The outbox
-- has no fixed length: a sweep drops events that every reader has acknowledged. There
-- are two streams, because the audit log is trimmed by age.
local function announce_each(outbox, audit, events, now)
  for _, event in ipairs(events) do
    write_event(outbox, event, now)
    write_event(audit, event, now)
  end
end

-- Write events from a JSON array.
local function announce(outbox, audit, events, now)
  announce_each(outbox, audit, cjson.decode(events), now)
end

-- Queue a job (JSON) that resumes the agent, and return its id; does nothing for an
-- empty text.
local function enqueue(jobs, job)
  if job ~= '' then
    return redis.call('XADD', jobs, '*', 'j', job)
  end
end

-- Lifetime of verdicts without a record, and of the list of answers: milliseconds.
local DAY_MS = 24 * 60 * 60 * 1000

-- An agent's requests are counted in intervals of this length, each with the time when
-- it expires. A request therefore counts up to this much longer, never shorter.
local ASKED_STEP_MS = 10000

-- Return the current number of requests, and the expired intervals.
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

-- Add requests to the count.
local function count_asked(requests, count, now, asked_ms)
  local step = (math.floor(now / ASKED_STEP_MS) + 1) * ASKED_STEP_MS + asked_ms
  redis.call('HINCRBY', requests, string.format('%.0f', step), count)
  redis.call('PEXPIREAT', requests, step)
end

-- Return whether the sealed list of freezes has another seal than this one (hex; "" for
-- no list). See freezes.py: the list begins with a mark of one byte.
local function has_other_list(frozen, seal)
  local list = redis.call('GET', frozen .. '_sealed')
  return (list and string.sub(list, 2, 17) or '') ~= from_hex(seal)
end

-- Return whether there may be a freeze: the list has another seal than this one, or one
-- of these pauses, listed after the seal, exists.
local function freeze_of(frozen, names)
  if has_other_list(frozen, names[1]) then return true end
  for index = 2, #names do
    if redis.call('HEXISTS', frozen, names[index]) == 1 then return true end
  end
  return false
end

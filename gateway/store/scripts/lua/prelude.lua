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

-- Functions of all scripts; script.py puts them behind the first line of each.
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

local function from_hex(text)
  return (string.gsub(text, '..', function(pair)
    return string.char(tonumber(pair, 16))
  end))
end

-- An approval stands in sorted sets by the random half of its id, raw: one that waits is
-- in half a dozen of them, so what was worked out is kept for the rest of the script.
local LISTED = {}
local function listed(id)
  local found = LISTED[id] or from_hex(string.match(id, '[^_]*$'))
  LISTED[id] = found
  return found
end

-- Return the id that `listed` was made of; the tenant is that of the keys.
local function unlisted(base, member)
  return 'ap_' .. string.match(base, '{(.-)}') .. '_' .. to_hex(member)
end

-- Write an event to the outbox or to the audit log: a text and its seal, behind a newline.
local function write_event(stream, event, now)
  local at = string.find(event, '\n', 1, true)
  local text, seal = string.sub(event, 1, at - 1), string.sub(event, at + 1)
  redis.call('XADD', stream, '*', 'e', text, 'at', now, 's', seal)
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

-- How long verdicts that need no record, and the list of answers, are kept: milliseconds.
local DAY_MS = 24 * 60 * 60 * 1000

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

-- Return whether the sealed list of freezes is another one than a process verified, by
-- its seal in hex; "" for none. See freezes.py: the list begins with a mark of one byte.
local function has_other_list(frozen, seal)
  local list = redis.call('GET', frozen .. '_sealed')
  return (list and string.sub(list, 2, 17) or '') ~= from_hex(seal)
end

-- Return whether something is frozen: another list than the one with this seal, by which
-- it is not, or one of these pauses, behind the seal.
local function freeze_of(frozen, names)
  if has_other_list(frozen, names[1]) then return true end
  for index = 2, #names do
    if redis.call('HEXISTS', frozen, names[index]) == 1 then return true end
  end
  return false
end

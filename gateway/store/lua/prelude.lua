-- What every script shares; scripts.py puts it behind the first line of each.
local function now_ms()
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end

-- Write events (a JSON array of JSON texts) to the outbox and to the audit log.
local function announce(outbox, audit, events, now)
  for _, event in ipairs(cjson.decode(events)) do
    redis.call('XADD', outbox, 'MAXLEN', '~', 100000, '*', 'e', event, 'at', now)
    redis.call('XADD', audit, '*', 'e', event, 'at', now)
  end
end

-- Queue a job (JSON) that brings the agent back; an empty text queues nothing.
local function enqueue(jobs, job)
  if job ~= '' then
    redis.call('XADD', jobs, '*', 'j', job)
  end
end

-- Keep the deadline index true: the earliest of the expiry while an item is pending,
-- the lapse of an unused authorization, and the end of a claim without a heartbeat.
local function reindex(head, expiry, id, now)
  local due = nil
  local function consider(at)
    at = tonumber(at or '0')
    if at > 0 and (due == nil or at < due) then due = at end
  end
  for i = 0, tonumber(redis.call('HGET', head, 'n')) - 1 do
    local state = redis.call('HGET', head, i .. ':s')
    if state == 'pending' then
      consider(redis.call('HGET', head, 'expires'))
    elseif state == 'authorized' then
      consider(redis.call('HGET', head, i .. ':l'))
    elseif state == 'executing' then
      -- A claim that has ended is found by whoever asks for it next.
      local ends = tonumber(redis.call('HGET', head, i .. ':u') or '0')
      if ends > now then consider(ends) end
    end
  end
  if due then
    redis.call('ZADD', expiry, due, id)
  else
    redis.call('ZREM', expiry, id)
  end
end

-- Deliver a job to the worker of the process that queues it, with the lease of its thread:
-- see handover.py. script.py puts this behind the prelude of a script that includes it.
-- A taker is {group, consumer, token, ttl_ms}; keys are lease, fences, dropped and facts.

-- Return whether a worker may begin a job at once; this reads and writes nothing.
local function may_hand_over(taker, jobs, lease, fences, dropped, facts)
  if redis.call('EXISTS', lease, dropped) > 0 then return false end
  -- A run whose past nobody looked at is not begun without that.
  if redis.call('HGET', facts, 'run') ~= 'open' then return false end
  -- See lease.lua.
  if tonumber(redis.call('GET', fences) or '0') + 1 >= 2 ^ 53 then return false end
  -- A store that came back empty has no group; a worker makes it again.
  local groups = redis.pcall('XINFO', 'GROUPS', jobs)
  if groups.err then return false end
  for _, group in ipairs(groups) do
    local facts_of = {}
    for i = 1, #group, 2 do facts_of[group[i]] = group[i + 1] end
    if facts_of.name == taker.group then
      -- Jobs that wait are older: the next one that is read must be ours.
      local after = '(' .. facts_of['last-delivered-id']
      return #redis.call('XRANGE', jobs, after, '+', 'COUNT', 1) == 0
    end
  end
  return false
end

-- Deliver the job with this id; return the fence of its lease, or nil where the group
-- is to deliver it.
local function hand_over(taker, jobs, id, lease, fences)
  -- pcall, since all else is written: what is not delivered is read as any other job.
  local found = redis.pcall('XREADGROUP', 'GROUP', taker.group, taker.consumer,
    'COUNT', 1, 'STREAMS', jobs, '>')
  if not found or found.err or found[1][2][1][1] ~= id then return nil end
  local fence = string.format('%.0f', tonumber(redis.call('GET', fences) or '0') + 1)
  redis.call('SET', fences, fence)
  redis.call('HSET', lease, 'token', taker.token, 'fence', fence, 'job', id)
  redis.call('PEXPIRE', lease, taker.ttl_ms)
  return fence
end

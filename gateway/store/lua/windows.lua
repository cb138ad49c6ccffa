-- Windows for rate and sum limits. script.py puts this behind the prelude of a script
-- that includes it.

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

-- Windows for rate and sum limits. script.py inserts this after the prelude of a script
-- that includes it.

-- A window is a sorted set of uses by their expiry, with a separate running sum, so
-- that no script ever adds up a window. A use is a text: the call, a blank, and the
-- amount in millionths. Amounts are not converted to Lua numbers for additions, so that
-- the sum stays exact.
local function amount_of(use)
  return string.match(use, ' (%d+)$')
end

-- A window lives until its last use expires.
local function outlive(window)
  local last = redis.call('ZREVRANGE', window, 0, 0, 'WITHSCORES')[2]
  if last then
    redis.call('PEXPIREAT', window, last)
    -- Set and sum must expire together: a sum without its uses would count forever, and
    -- uses without their sum would be subtracted from zero.
    redis.call('PEXPIREAT', window .. ':sum', last)
  else
    redis.call('DEL', window .. ':sum')
  end
end

-- Limit of expired uses removed in one step; the others count until later steps. If a
-- million uses expire at once, the sum is too high for a while, but never too low.
local MOST_FORGOTTEN = 10000

-- Remove expired uses; return the sum (text) of the others.
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

-- Count a use until a time; an existing use keeps its amount.
local function hold(window, use, till)
  -- A submission repeated after a lost reply has the same use again.
  if not redis.call('ZSCORE', window, use) then
    redis.call('INCRBY', window .. ':sum', amount_of(use))
  end
  redis.call('ZADD', window, till, use)
  outlive(window)
end

-- Remove a use.
local function release(window, use)
  -- Only an existing use is subtracted, so a repeated release has no effect.
  if redis.call('ZREM', window, use) == 1 then
    redis.call('DECRBY', window .. ':sum', amount_of(use))
    outlive(window)
  end
end

-- The reservations of item i: rows of {window, use, within_ms}.
local function uses_of(head, i)
  return cjson.decode(redis.call('HGET', head, i .. ':w') or '[]')
end

local UNEXECUTED = {rejected = true, answered = true, expired = true,
  superseded = true, withdrawn = true, lapsed = true}

-- A time that never comes: an authorized call may run, or have run, until it ends.
-- Below 2^53, so that it is exact as a score, and accepted by PEXPIREAT.
local WHILE_OPEN = 9e15

-- Update an item's uses after a change of its state. They count while it may still run,
-- and for the window's length after it ran. Uses of a call that never ran are removed.
-- Uses of a pending item count a little beyond its deadline.
local function update_uses(head, i, state, now, till)
  for _, row in ipairs(uses_of(head, i)) do
    if UNEXECUTED[state] then
      release(row[1], row[2])
    elseif state == 'executed' or state == 'failed' or state == 'handed_over'
      or state == 'not_taken' then
      -- Whether a program ran a call that it did not take from here is not known.
      hold(row[1], row[2], now + row[3])
    else
      -- A late sweep must not free the use of a call that may still be approved.
      hold(row[1], row[2], state == 'pending' and till or WHILE_OPEN)
    end
  end
end

-- Return a window's sum with this use instead of the item's existing ones.
local function total_with(window, use, own, now, sum)
  local total = tonumber(sum or slide(window, now)) + tonumber(amount_of(use))
  for _, row in ipairs(own) do
    -- An expired use is no longer in the sum.
    if row[1] == window and redis.call('ZSCORE', window, row[2]) then
      total = total - tonumber(amount_of(row[2]))
    end
  end
  return total
end

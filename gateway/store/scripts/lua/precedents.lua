-- Precedents: results of calls with one effect. script.py inserts this after the
-- prelude of a script that includes it.

-- The precedents of an effect are a hash with a text "at age kind body" for each call:
-- the last write, and how long it was a precedent of its kind then. `n` numbers the
-- changes: an evaluation is compared with it in the step that writes.
local MOST_KEPT = 20
local PRECEDENT_MS = 30 * 24 * 60 * 60 * 1000

-- Drop old precedents, and all but the newest of each kind. `found` has the fields of
-- the hash, one after another.
local function trim_precedents(key, found, now)
  local rows, counts = {}, {}
  for i = 1, #found, 2 do
    local at, kind = string.match(found[i + 1], '^(%d+) %d+ (%l+) ')
    if at then rows[#rows + 1] = {tonumber(at), kind, found[i]} end
  end
  table.sort(rows, function(a, b) return a[1] > b[1] or (a[1] == b[1] and a[3] > b[3]) end)
  for _, row in ipairs(rows) do
    local count = (counts[row[2]] or 0) + 1
    counts[row[2]] = count
    if count > MOST_KEPT or now - row[1] > PRECEDENT_MS then
      redis.call('HDEL', key, row[3])
    end
  end
end

-- Write precedents; rows are {key, call, kind, body, keep_ms}. Without a kind the
-- precedent is deleted.
local function note_precedents(rows, now)
  for _, row in ipairs(rows) do
    local key, call, kind, keep = row[1], row[2], row[3], row[5]
    local found = redis.call('HGETALL', key)
    local is_new, place, n = #found == 0, #found + 1, 0
    for i = 1, #found, 2 do
      if found[i] == 'n' then n = tonumber(found[i + 1]) or 0 end
      if found[i] == call then place = i end
    end
    if kind then
      local at, age, of = string.match(found[place + 1] or '', '^(%d+) (%d+) (%l+) ')
      -- After a fail-over the clock may be behind the last write.
      age = of == kind and age + math.max(0, now - at) or 0
      local text = string.format('%.0f %.0f %s %s', now, age, kind, row[4])
      redis.call('HSET', key, 'n', string.format('%.0f', n + 1), call, text)
      found[place], found[place + 1] = call, text
    else
      redis.call('HINCRBY', key, 'n', 1)
      redis.call('HDEL', key, call)
      found[place], found[place + 1] = call, ''
    end
    -- Most effects have one call: the only other field is `n`.
    if #found > 4 then trim_precedents(key, found, now) end
    -- Never shortened: auto-approved calls have a shorter lifetime than decided ones.
    if is_new or redis.call('PTTL', key) < keep then redis.call('PEXPIRE', key, keep) end
  end
end

-- Return whether precedents changed since an evaluation; rows are {key, n}.
local function have_precedents_moved(rows)
  for _, row in ipairs(rows) do
    if (redis.call('HGET', row[1], 'n') or '') ~= row[2] then return true end
  end
  return false
end

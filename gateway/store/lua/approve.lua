#!lua
-- Write the approval of a call that was precomputed, see precomputed.py, if nothing moved
-- since then. It compares and writes what change.lua does of such a change, which is told
-- in texts one after another: most of what change.lua costs is to read JSON, and to make
-- the functions and tables of what else a change may be.
-- include precedents.lua
-- include next_version.lua
-- KEYS[1] head        hash    what changes of the approval
-- KEYS[2] expiry      zset    deadlines of the shard
-- KEYS[3] outbox      stream  events
-- KEYS[4] audit       stream  audit log
-- KEYS[5] jobs        stream  resume jobs
-- KEYS[6] waiting     zset    the agent's pending items
-- KEYS[7] frozen      hash    what is frozen of the tenant
-- KEYS[8] rejections  string  how many of the agent's calls were rejected in a row
-- ARGV[1] id          text    the approval
-- ARGV[2] rev         text    what was read
-- ARGV[3] seen_ms     int     when it was read, by this server's clock
-- ARGV[4] before_ms   int     not to be written from this moment on
-- ARGV[5] index       int     the item that is approved; it uses no windows
-- ARGV[6] keep_ms     int     lifetime of what has ended, milliseconds
-- ARGV[7] job         text    the resume job
-- ARGV[8] seal_read   hex     the seal of the head as it was read
-- ARGV[9] seal        hex     its next seal
-- ARGV[10] as_read    int     how many fields of the head have to be as they were read
-- ARGV[11] fields     int     how many texts are fields to write and their values
-- ARGV[12] leaves     int     how many queues of people it leaves
-- ARGV[13] precedents int     how many precedents are noted
-- ARGV[14] events     int     how many events are announced
-- ARGV[15..] texts    text    these: names of the fields as read, then what each holds;
--                             name and value of each field to write; queues; key, call,
--                             kind, body and keep_ms of each precedent; text and seal of
--                             each event. Then what has to be so, "" where it does not
--                             matter: place and display of its card, alone, delegations
--                             and unseen, see next_version.lua. Then how many texts say
--                             what is not frozen, and these: the seal of the list of
--                             freezes, and names. To the end key, text and keep_ms of
--                             each text to keep
-- Returns:
--   {"done", now}  written, at this moment of this server's clock
--   {"moved"}  another rev, or anything else that change.lua calls so; also where there is
--              no such approval
local head, expiry, outbox, audit, jobs, waiting, frozen, rejections = unpack(KEYS)
local id, index, keep, now = ARGV[1], ARGV[5], tonumber(ARGV[6]), now_ms()
local at, count = 15, tonumber(ARGV[10])
local found = redis.call('HMGET', head, 'rev', 'h', 'quarantined', index .. ':w',
  'created', unpack(ARGV, at, at + count - 1))
local created = found[5]
-- Times of the next version were computed from the reading: an old one is not used.
if found[1] ~= ARGV[2] or math.abs(now - tonumber(ARGV[3])) > MAX_READING_MS then
  return {'moved'}
end
if found[2] ~= from_hex(ARGV[8]) or now >= tonumber(ARGV[4]) then return {'moved'} end
-- With these it is another change. What waits has no lifetime, see `retain`; it would have
-- to be taken away from all that belongs to it.
if found[3] or (found[4] or '[]') ~= '[]' or redis.call('PTTL', head) ~= -1 then
  return {'moved'}
end
for place = 0, count - 1 do
  if (found[6 + place] or '') ~= ARGV[at + count + place] then return {'moved'} end
end
local fields = at + 2 * count
local queues = fields + tonumber(ARGV[11])
local precedents = queues + tonumber(ARGV[12])
local events = precedents + 5 * tonumber(ARGV[13])
local assumed = events + 2 * tonumber(ARGV[14])
local unfrozen = assumed + 5
local kept = unfrozen + 1 + tonumber(ARGV[unfrozen])
if kept > unfrozen + 1
  and freeze_of(frozen, {unpack(ARGV, unfrozen + 1, kept - 1)}) then
  return {'moved'}
end
local function told(place)
  local text = ARGV[assumed + place]
  return text ~= '' and text or nil
end
if has_other_surroundings(head, {place = told(0), display = told(1), alone = told(2),
  delegations = told(3), unseen = told(4)}, now) then
  return {'moved'}
end
-- Every check is above, every write below: Redis does not roll back a script that stops
-- in the middle.
redis.call('HSET', head, 'rev', string.format('%.0f', tonumber(ARGV[2]) + 1),
  'h', from_hex(ARGV[9]), unpack(ARGV, fields, queues - 1))
redis.call('ZREM', waiting, listed(id) .. index)
for place = queues, precedents - 1 do redis.call('ZREM', ARGV[place], listed(id)) end
-- After the fields are written, which these read.
reindex(head, expiry, id, now)
-- It stays open, so that is all there is to retain.
know_short(split(head), id, tonumber(created) or 0, now + 4 * keep)
for place = events, assumed - 1, 2 do
  write_sealed(outbox, ARGV[place], ARGV[place + 1], now)
  write_sealed(audit, ARGV[place], ARGV[place + 1], now)
end
enqueue(jobs, ARGV[7])
for place = precedents, events - 1, 5 do
  local key, call, kind, body, keep_ms = unpack(ARGV, place, place + 4)
  note_precedents({{key, call, kind, body, tonumber(keep_ms)}}, now)
end
for place = kept, #ARGV, 3 do
  redis.call('SET', ARGV[place], ARGV[place + 1], 'PX', ARGV[place + 2])
end
-- An authorization ends the row of rejections.
redis.call('DEL', rejections)
return {'done', now}

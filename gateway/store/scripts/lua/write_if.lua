#!lua
-- Run commands and write events, if the values that the caller read are unchanged: all
-- or none.
-- KEYS[1] outbox      stream  events
-- KEYS[2] audit       stream  audit log
-- ARGV[1] outbox_events json  array of event texts, each with its seal
-- ARGV[2] audit_events  json  the same for the audit log
-- ARGV[3] checks      int     number of values to compare
-- ARGV[4] writes      int     number of commands to run
-- ARGV[5..] words     mixed   for each value the number of words of the command that reads
--                             it, these words, and the expected reply ("" for none); then
--                             for each command to run the number of its words, and these
-- Returns:
--   {"done"}
--   {"moved"}  a value has changed: read again
local at = 5
local function next_command()
  local last = at + tonumber(ARGV[at])
  local words = {unpack(ARGV, at + 1, last)}
  at = last + 1
  return words
end
for _ = 1, tonumber(ARGV[3]) do
  local found = redis.call(unpack(next_command()))
  if tostring(found or '') ~= ARGV[at] then return {'moved'} end
  at = at + 1
end
-- All checks are above, all writes below: Redis does not roll back a script that stops
-- in the middle.
for _ = 1, tonumber(ARGV[4]) do redis.call(unpack(next_command())) end
local now = now_ms()
for _, event in ipairs(cjson.decode(ARGV[1])) do write_event(KEYS[1], event, now) end
for _, event in ipairs(cjson.decode(ARGV[2])) do write_event(KEYS[2], event, now) end
return {'done'}

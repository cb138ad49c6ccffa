#!lua
-- Write a security event, once for each thing that was found.
-- KEYS[1] found    string  mark of what was found
-- KEYS[2] outbox   stream  events
-- KEYS[3] audit    stream  audit log
-- ARGV[1] found_ms     int   how long the same is not told again
-- ARGV[2] outbox_event text  the event with its seal, or empty to tell nobody
-- ARGV[3] audit_event  text  the entry of the audit log with its seal, or empty for none
-- Returns:
--   {"told"}
--   {"known"}  another process told of it
if not redis.call('SET', KEYS[1], '1', 'NX', 'PX', ARGV[1]) then return {'known'} end
local now = now_ms()
if ARGV[2] ~= '' then write_event(KEYS[2], ARGV[2], now) end
if ARGV[3] ~= '' then write_event(KEYS[3], ARGV[3], now) end
return {'told'}

#!lua
-- Write a security event, once for each finding.
-- KEYS[1] found    string  mark of the finding
-- KEYS[2] outbox   stream  events
-- KEYS[3] audit    stream  audit log
-- ARGV[1] found_ms     int   lifetime of the mark, milliseconds
-- ARGV[2] outbox_event text  the event with its seal, or empty for none
-- ARGV[3] audit_event  text  the entry of the audit log with its seal, or empty for none
-- Returns:
--   {"told"}
--   {"known"}  another process reported it
if not redis.call('SET', KEYS[1], '1', 'NX', 'PX', ARGV[1]) then return {'known'} end
local now = now_ms()
if ARGV[2] ~= '' then write_event(KEYS[2], ARGV[2], now) end
if ARGV[3] ~= '' then write_event(KEYS[3], ARGV[3], now) end
return {'told'}

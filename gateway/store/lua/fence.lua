-- Fencing check: refuse a process that lost its lease, as another may have gone on.
-- script.py puts this behind the prelude of a fenced script, when there is a lease: its
-- key is then the last one, and the holder's fence and token are the last argument.
-- The token, too: whoever has an API key can count, but not guess what names the holder.
local held = redis.call('HMGET', KEYS[#KEYS], 'fence', 'token')
if (held[1] or '') .. ' ' .. (held[2] or '') ~= ARGV[#ARGV] then return {'fenced'} end

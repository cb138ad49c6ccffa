-- Fencing check: refuse a process that lost its lease, as another may have gone on.
-- script.py puts this behind the prelude of a fenced script, when there is a lease: its
-- key is then the last one, and the holder's fence is the last argument.
if redis.call('HGET', KEYS[#KEYS], 'fence') ~= ARGV[#ARGV] then return {'fenced'} end

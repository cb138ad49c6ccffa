#!lua
-- Take a response URL for one post.
-- KEYS[1] url string for how many posts it is good, a blank, and the URL
-- Returns:
--   {"taken", url}
--   {"none"}  there is none, or it was good for no more
local left, url = string.match(redis.call('GET', KEYS[1]) or '', '^(%d+) (.+)$')
if not url then return {'none'} end
if left == '1' then
  redis.call('DEL', KEYS[1])
else
  redis.call('SET', KEYS[1], string.format('%d %s', left - 1, url), 'KEEPTTL')
end
return {'taken', url}

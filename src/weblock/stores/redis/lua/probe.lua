-- Tries every command that the scripts use, on keys that no lock uses, and returns those that its user
-- has no right to, or that the server does not know.

local probe, channel = KEYS[1], ARGV[4]
local refused = {}

-- The texts of Redis 7 and of Redis 6, and that of an unknown command.
local denials = { 'ACL failure', 'NOPERM', 'user executing the script', 'Unknown ' }

local function try(command, ...)
  local reply = redis.pcall(command, ...)
  local failure = type(reply) == 'table' and reply.err or ''
  for _, denial in ipairs(denials) do
    if string.find(failure, denial, 1, true) then
      refused[#refused + 1] = command
      return
    end
  end
  return reply
end

try('SET', probe, '1', 'PX', '1000')
try('EXISTS', probe)
try('DEL', probe)
try('HSET', probe, 'a', '1')
try('HMGET', probe, 'a')
try('HGET', probe, 'a')
try('HGETALL', probe)
try('HDEL', probe, 'a')
try('ZADD', probe, 1, 'a')
try('ZRANGE', probe, 0, 0)
try('ZRANK', probe, 'a')
try('ZCARD', probe)
try('PEXPIRE', probe, 1000)
try('ZREM', probe, 'a')
try('ZREMRANGEBYSCORE', probe, 0, 0)
try('TIME')
try('PING')
-- Without it, a server that was emptied would not be noticed.
local statistics = try('INFO', 'commandstats')
if type(statistics) == 'string' and not string.find(statistics, 'cmdstat_', 1, true) then
  refused[#refused + 1] = 'INFO commandstats'
end
try('PUBLISH', channel, '')
return refused

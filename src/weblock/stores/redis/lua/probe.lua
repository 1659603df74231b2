-- Tries every command that the scripts use, on keys that nobody else does, and returns what the
-- server refused: rights that its user lacks.

local probe, channel = KEYS[1], ARGV[4]
local refused = {}

local function try(...)
  local reply = redis.pcall(...)
  if type(reply) == 'table' and reply.err then
    refused[#refused + 1] = reply.err
  end
end

try('SET', probe, '1', 'PX', '1000')
try('EXISTS', probe)
try('DEL', probe)
try('HSET', probe, 'a', '1')
try('HMGET', probe, 'a')
try('HGET', probe, 'a')
try('HINCRBY', probe, 'a', 1)
try('HDEL', probe, 'a')
try('ZADD', probe, 1, 'a')
try('ZRANGE', probe, 0, 0)
try('ZRANK', probe, 'a')
try('ZCARD', probe)
try('PEXPIRE', probe, 1000)
try('ZREM', probe, 'a')
try('TIME')
try('PING')
try('INFO', 'server')
try('PUBLISH', channel, '')
return refused

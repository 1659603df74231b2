-- One command on one key that is no lock.

return redis.call(ARGV[4], KEYS[1], unpack(ARGV, 5))

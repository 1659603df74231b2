"""Version 3: SET NX, which is one step, and a script that deletes only one's own lock."""

import secrets

from fastapi import APIRouter, HTTPException
from redis import Redis

from demo.shop import add_item
from demo.versions import SERVERS, TTL

router = APIRouter()
redis = Redis.from_url(SERVERS[0])
release = redis.register_script("""
if redis.call('GET', KEYS[1]) == ARGV[1] then
  return redis.call('DEL', KEYS[1])
end
return 0
""")


@router.post("/items", status_code=201)
def create_item(work: float) -> dict[str, int]:
    """Take the lock if it is free. Nothing checks at the end that it is still held."""
    token = secrets.token_hex(16)
    if not redis.set("set-nx", token, nx=True, px=int(TTL * 1000)):
        raise HTTPException(409, "another request is creating an item")
    try:
        return add_item(work)
    finally:
        release(keys=["set-nx"], args=[token])

"""Version 4: Redlock. The same on three servers, of which a majority has to agree."""

import secrets

from fastapi import APIRouter, HTTPException
from redis import Redis, RedisError

from demo.shop import add_item
from demo.versions import SERVERS, TTL

router = APIRouter()
servers = [Redis.from_url(url, socket_timeout=0.2) for url in SERVERS]
QUORUM = len(servers) // 2 + 1
RELEASE = """
if redis.call('GET', KEYS[1]) == ARGV[1] then
  return redis.call('DEL', KEYS[1])
end
return 0
"""


def lock_one(server: Redis, token: str) -> bool:
    """Whether this server's lock is ours."""
    try:
        return bool(server.set("redlock", token, nx=True, px=int(TTL * 1000)))
    except RedisError:
        return False


def unlock_all(token: str) -> None:
    """Deletes our lock wherever it is."""
    for server in servers:
        try:
            server.eval(RELEASE, 1, "redlock", token)
        except RedisError:
            pass


@router.post("/items", status_code=201)
def create_item(work: float) -> dict[str, int]:
    """Takes the lock if a majority gives it."""
    token = secrets.token_hex(16)
    try:
        if sum(lock_one(server, token) for server in servers) < QUORUM:
            raise HTTPException(409, "another request is creating an item")
        return add_item(work)
    finally:
        unlock_all(token)

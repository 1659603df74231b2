"""Version 5: Redlock to the letter, with a validity less clock drift, and retries after random delays."""

import random
import secrets
import time

from fastapi import APIRouter, HTTPException
from redis import Redis, RedisError

from demo.shop import add_item
from demo.versions import SERVERS, TTL

router = APIRouter()
servers = [Redis.from_url(url, socket_timeout=0.2) for url in SERVERS]
QUORUM = len(servers) // 2 + 1
RETRIES = 6
RETRY_DELAY = 0.2
CLOCK_DRIFT = 0.01
RELEASE = """
if redis.call('GET', KEYS[1]) == ARGV[1] then
  return redis.call('DEL', KEYS[1])
end
return 0
"""


def lock_one(server: Redis, token: str) -> bool:
    """Whether this server's lock is ours."""
    try:
        return bool(server.set("careful-redlock", token, nx=True, px=int(TTL * 1000)))
    except RedisError:
        return False


def unlock_all(token: str) -> None:
    """Deletes our lock wherever it is."""
    for server in servers:
        try:
            server.eval(RELEASE, 1, "careful-redlock", token)
        except RedisError:
            pass


def lock(token: str) -> bool:
    """Whether a majority gave us the lock, in time."""
    for _ in range(RETRIES):
        started = time.monotonic()
        votes = sum(lock_one(server, token) for server in servers)
        drift = TTL * CLOCK_DRIFT + 0.002
        validity = TTL - (time.monotonic() - started) - drift
        if votes >= QUORUM and validity > 0:
            return True
        unlock_all(token)
        time.sleep(random.uniform(0, RETRY_DELAY))
    return False


@router.post("/items", status_code=201)
def create_item(work: float) -> dict[str, int]:
    """Takes the lock, with patience. How long it is valid is known, and then forgotten."""
    token = secrets.token_hex(16)
    if not lock(token):
        raise HTTPException(409, "another request is creating an item")
    try:
        return add_item(work)
    finally:
        unlock_all(token)

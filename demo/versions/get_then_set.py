"""Version 2: GET, and if there is no lock, SET. What happens between the two, nobody knows."""

from fastapi import APIRouter, HTTPException
from redis import Redis

from demo.shop import add_item
from demo.versions import SERVERS, TTL

router = APIRouter()
redis = Redis.from_url(SERVERS[0])


@router.post("/items", status_code=201)
def create_item(work: float) -> dict[str, int]:
    """Check for the lock, then take it. At the end, delete it, even if it belongs to another request."""
    if redis.get("get-then-set"):
        raise HTTPException(409, "another request is creating an item")
    redis.set("get-then-set", "locked", px=int(TTL * 1000))
    try:
        return add_item(work)
    finally:
        redis.delete("get-then-set")

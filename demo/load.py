"""The clients: requests that all come at once, each on a connection of its own."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

import httpx


class Answer(NamedTuple):
    """What a client was told."""

    status: int
    text: str


def client(url: str) -> httpx.AsyncClient:
    """A client that uses no connection twice, so that every worker gets its share."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    return httpx.AsyncClient(base_url=url, timeout=60, limits=limits, trust_env=False)


async def create_item(client: httpx.AsyncClient, **params: float) -> Answer:
    """Asks for one item. Raises ``httpx.HTTPError`` if the connection breaks."""
    response = await client.post("/items", params=params)
    content = response.json()
    if response.status_code == 201:
        return Answer(201, f"item {content['item']}")
    return Answer(response.status_code, content["detail"])


async def create_items(url: str, requests: int) -> list[Answer]:
    """Asks for many items at the same moment."""
    async with client(url) as clients:
        return await asyncio.gather(*(create_item(clients) for _ in range(requests)))

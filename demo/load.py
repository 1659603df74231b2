"""The clients: requests that come at once, each on a connection of its own."""

from __future__ import annotations

import asyncio
from typing import Final, NamedTuple

import httpx

SPREAD: Final = 0.06
"""Seconds over which they come, less than one request's work: so they queue in about the order in
which they are dealt to the workers, and the picture shows the lock go from one to the other."""


class Answer(NamedTuple):
    """What a client was told; its status is 0 if the connection broke."""

    status: int
    text: str
    code: str = ""
    """What a program reads from a problem: ``lock_timeout``, say."""


def client(url: str) -> httpx.AsyncClient:
    """A client that uses no connection twice, so that every worker gets its share."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    return httpx.AsyncClient(base_url=url, timeout=60, limits=limits, trust_env=False)


async def create_item(clients: httpx.AsyncClient, path: str = "/items", **params: float) -> Answer:
    """Asks for one item."""
    try:
        response = await clients.post(path, params=params)
    except httpx.HTTPError as error:
        return Answer(0, f"no answer: {type(error).__name__}")
    if response.status_code == 201:
        return Answer(201, f"item {response.json()['item']}")
    if "json" not in response.headers.get("content-type", ""):
        return Answer(response.status_code, response.text)
    problem = response.json()
    return Answer(response.status_code, str(problem["detail"]), problem.get("code", ""))


async def create_items(clients: httpx.AsyncClient, requests: int) -> list[asyncio.Task[Answer]]:
    """Asks for many items: all at work at the same time, and none waited for here."""
    asked = []
    for _ in range(requests):
        asked.append(asyncio.create_task(create_item(clients)))
        await asyncio.sleep(SPREAD / requests)
    return asked

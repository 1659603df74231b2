"""The same requests for every version.

One comes first, and its work takes longer than a ttl: a slow payment, a long collection of garbage.
A burst comes while the lock is young, another when its ttl has just ended, and some one by one.
"""

from __future__ import annotations

import asyncio
from typing import Final, NamedTuple

import httpx

from demo.load import Answer, client, create_item
from demo.versions import TTL

WORK: Final = 0.15
SLOW: Final = 2.3 * TTL


class Request(NamedTuple):
    """One request: seconds from the start, and seconds of work."""

    at: float
    work: float


def plan(requests: int) -> list[Request]:
    """The slow one, two bursts, and a trickle."""
    early = late = requests // 4
    rest = requests - 1 - early - late
    moments = [0.1] * early + [1.1 * TTL] * late
    moments += [TTL * (1.3 + 0.7 * number / rest) for number in range(rest)]
    return [Request(0.0, SLOW), *(Request(at, WORK) for at in moments)]


async def ask(url: str, name: str, requests: int) -> list[Answer]:
    """What all were told that asked a version for an item."""
    async with client(url) as clients:
        return await asyncio.gather(*(_ask(clients, name, each) for each in plan(requests)))


async def _ask(clients: httpx.AsyncClient, name: str, request: Request) -> Answer:
    await asyncio.sleep(request.at)
    return await create_item(clients, f"/{name}/items", work=request.work)

"""The clients: requests that go to the workers in turn, as a load balancer deals them."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import httpx

SPREAD: Final = 0.06
"""Seconds over which they come, less than one request's work: so they queue in about the order in
which they are dealt to the workers, and the picture shows the lock go from one to the other."""


class Request(NamedTuple):
    """One request: seconds from the start, and what it asks for."""

    at: float
    work: float | None = None
    """Seconds, if not as many as the application takes by itself."""


class Answer(NamedTuple):
    """What a client was told; its status is 0 if the connection broke."""

    status: int
    text: str
    code: str = ""
    """What a program reads from a problem: ``lock_timeout``, say."""


def at_once(requests: int) -> list[Request]:
    """Requests that are all at work at the same time, if nothing keeps them apart."""
    return [Request(SPREAD * number / requests) for number in range(requests)]


async def ask(
    urls: Sequence[str], requests: Iterable[Request], *, path: str = "/items"
) -> list[Answer]:
    """Ask for items; what all were told."""
    async with httpx.AsyncClient(timeout=60, limits=httpx.Limits(), trust_env=False) as client:
        return await asyncio.gather(
            *(
                _ask(client, url + path, request)
                for url, request in zip(itertools.cycle(urls), requests, strict=False)
            )
        )


async def _ask(client: httpx.AsyncClient, url: str, request: Request) -> Answer:
    await asyncio.sleep(request.at)
    try:
        params = {} if request.work is None else {"work": request.work}
        response = await client.post(url, params=params)
    except httpx.HTTPError as error:
        return Answer(0, f"no answer: {type(error).__name__}")
    if response.status_code == 201:
        return Answer(201, f"item {response.json()['item']}")
    if "json" not in response.headers.get("content-type", ""):
        return Answer(response.status_code, response.text)
    problem = response.json()
    return Answer(response.status_code, str(problem["detail"]), problem.get("code", ""))

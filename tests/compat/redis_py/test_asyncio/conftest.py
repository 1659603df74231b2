"""The same for asyncio."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from weblock.compat import redis as compat

from ..onlooker import AsyncClient, NotedAsyncLock, Onlooker


@pytest.fixture(autouse=True)
def lock_of_weblock(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Changes the import."""
    monkeypatch.setattr(request.module, "Lock", NotedAsyncLock)


@pytest.fixture
async def create_redis(
    request: pytest.FixtureRequest, port: int, onlooker: Onlooker
) -> AsyncIterator[Callable[..., Any]]:
    """As it is called there."""
    clients: list[AsyncClient] = []

    async def create(**options: Any) -> AsyncClient:
        client = AsyncClient(port=port, **options)
        client.made, client.onlooker = [], onlooker
        client.case = request.node.name
        clients.append(client)
        return client

    yield create
    for client in clients:
        await compat.asyncio.close(client)
        await client.aclose()


@pytest.fixture
async def r(create_redis: Callable[..., Any]) -> AsyncClient:
    """As it is called there."""
    return await create_redis()

"""A GraphQL server is one endpoint, whose resolvers acquire. Strawberry is one; skipped where it is not."""

from __future__ import annotations

import asyncio

import pytest
from fastapi import FastAPI

from tests.support.http import client_of
from weblock.contrib.fastapi import install, request_locks

strawberry = pytest.importorskip("strawberry", reason="Strawberry is not installed here")


def shop() -> FastAPI:
    """An application with a mutation that locks; each one that runs adds to the items."""
    server = pytest.importorskip("strawberry.fastapi")
    items: list[int] = []

    async def count() -> int:
        return len(items)

    async def create(info: strawberry.Info, most: int) -> bool:
        await request_locks(info.context["request"]).acquire("items")
        found = len(items)
        await asyncio.sleep(0)
        if found < most:
            items.append(found)
        return found < most

    query = type("Query", (), {"count": strawberry.field(resolver=count)})
    mutation = type("Mutation", (), {"create": strawberry.mutation(resolver=create)})
    app = FastAPI()
    schema = strawberry.Schema(strawberry.type(query), strawberry.type(mutation))
    app.include_router(server.GraphQLRouter(schema), prefix="/graphql")
    return app


async def test_a_mutation_holds_its_key_until_the_response(url: str) -> None:
    """Requests exclude each other, and one that acquires a key twice has one lease of it."""
    app = shop()
    own = install(app, url, wait=60)
    both = {"query": "mutation { a: create(most: 5) b: create(most: 5) }"}
    async with client_of(app) as client:
        answers = await asyncio.gather(*(client.post("/graphql", json=both) for _ in range(5)))
        assert [each.status_code for each in answers] == [200] * 5
        created = [value for each in answers for value in each.json()["data"].values()]
        assert sorted(created) == [False] * 5 + [True] * 5
        await own.close()

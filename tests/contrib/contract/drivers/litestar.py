"""``LockedLitestar``, whose hook before the response commits."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import Any, ClassVar

from litestar import Request, Response
from litestar import post as created
from litestar.response import Stream
from litestar.types import Message, Scope

from tests.contrib.contract.driver import ROUTES, OverAsgi, some
from tests.contrib.contract.promises import FRESH, ROLLED_BACK, STALE
from weblock.contrib.litestar import LockedLitestar, lease_of, lock

from .asgi import NO_DATABASE

post = partial(created, status_code=200)
Asked = Request[Any, Any, Any]


class Driver(OverAsgi):
    """An application that commits before its response is sent."""

    name = "Litestar"
    folder = "litestar"
    exempt: ClassVar = dict.fromkeys((ROLLED_BACK, STALE, FRESH), NO_DATABASE)

    def application(self) -> Any:
        site = self.site

        async def commit(message: Message, scope: Scope) -> None:
            if message["type"] == "http.response.start" and "handled" in scope:
                await asyncio.to_thread(site.commit)

        async def handle(request: Asked) -> Response[str] | Stream:
            lease = lease_of(request) if request.path_params.get("item_id", 1) else None
            await asyncio.to_thread(site.handle, lease)
            request.scope["handled"] = True
            return Stream(_in_threads(site.parts())) if site.parts else Response("done")

        def handle_in_thread(request: Asked) -> str:
            site.handle(lease_of(request))
            return "done"

        handlers = []
        for path, keys in ROUTES.items():
            guards = [lock(each if each is not some else of_some) for each in keys]
            in_thread = path.startswith("/threads")
            serve = handle_in_thread if in_thread else handle
            handlers.append(post(path, guards=guards, sync_to_thread=in_thread or None)(serve))
        return LockedLitestar(
            handlers,
            locks=self.locks,
            before_send=[commit],
            logging_config=None,
            openapi_config=None,
        )


def of_some(request: Any) -> str | None:
    return some(**request.path_params)


async def _in_threads(parts: Iterator[bytes]) -> AsyncIterator[bytes]:
    while part := await asyncio.to_thread(next, parts, b""):
        yield part

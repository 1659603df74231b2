"""``LockedLitestar``, whose hook before the response commits."""

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from typing import Any, ClassVar

from litestar import Request
from litestar import post as created
from litestar.response import Stream
from litestar.types import Message, Scope

from tests.contrib.contract.driver import OverAsgi, some
from tests.contrib.contract.promises import FRESH, ROLLED_BACK, STALE
from weblock.contrib.litestar import LockedLitestar, lease_of, lock, request_locks

from .asgi import NO_DATABASE

post = partial(created, status_code=200)
Asked = Request[Any, Any, Any]
ITEM = lock("item:{item_id}")


@post("/again/{item_id:int}", guards=[ITEM])
async def again(request: Asked) -> str:
    key = f"item:{request.path_params['item_id']}"
    return str((await request_locks().acquire(key, wait=0)).held)


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

        async def handle(request: Asked) -> str:
            await asyncio.to_thread(site.handle, lease_of(request))
            request.scope["handled"] = True
            return "done"

        @post("/items/{item_id:int}", guards=[ITEM])
        async def items(request: Asked) -> str:
            return await handle(request)

        @post("/threads/{item_id:int}", guards=[ITEM], sync_to_thread=True)
        def threads(request: Asked) -> str:
            site.handle(lease_of(request))
            return "done"

        @post("/names/{name:str}", guards=[lock("name:{name}")])
        async def names(request: Asked) -> str:
            return await handle(request)

        @post("/some/{item_id:int}", guards=[lock(lambda asked: some(**asked.path_params))])
        async def of_some(request: Asked) -> str:
            site.handle(None)
            return "done"

        @post("/pairs/{a:int}/{b:int}", guards=[lock("item:{a}"), lock("item:{b}")])
        async def pairs(request: Asked) -> str:
            return await handle(request)

        handlers = [items, threads, names, of_some, pairs, again, self._stream()]
        return LockedLitestar(
            handlers,
            locks=self.locks,
            before_send=[commit],
            logging_config=None,
            openapi_config=None,
        )

    def _stream(self) -> Any:
        @post("/streams/{item_id:int}", guards=[ITEM])
        async def stream() -> Stream:
            async def parts() -> AsyncIterator[bytes]:
                made = self.site.parts()
                while part := await asyncio.to_thread(next, made, b""):
                    yield part

            return Stream(parts())

        return stream

"""An application that any ASGI server runs, steered by tests: ``tests.e2e.asgi_app:app``."""

import asyncio
import os

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from tests.support.waiting import PATIENCE
from weblock.contrib.asgi import LockMiddleware, Rule

from . import steering

RULES = [
    Rule("/fixed", methods=["POST"], key="fixed"),
    Rule("/{kind}/{key}", methods=["POST"], key="{key}"),
    Rule("/{kind}/{key}/{name}", methods=["POST"], key="{key}"),
]


async def steered(request: Request) -> Response:
    name = request.path_params["name"]
    return PlainTextResponse(await asyncio.to_thread(steering.steered, name))


async def quick(request: Request) -> Response:
    return PlainTextResponse("done")


async def upload(request: Request) -> Response:
    return PlainTextResponse(await steering.digest_of_body(request))


async def large(request: Request) -> Response:
    return Response(b"x" * int(request.query_params["size"]))


async def memory(request: Request) -> Response:
    return steering.most_memory()


app = Starlette(
    routes=[
        Route("/steered/{key}/{name}", steered, methods=["POST"]),
        Route("/fixed", quick, methods=["POST"]),
        Route("/quick/{key}", quick, methods=["POST"]),
        Route("/upload/{key}", upload, methods=["POST"]),
        Route("/large/{key}", large, methods=["POST"]),
        Route("/memory", memory),
    ],
    lifespan=steering.lifespan,
    middleware=[
        Middleware(
            LockMiddleware,
            locks=os.environ.get("WEBLOCK_TEST_ENGINE", "noop://"),
            rules=RULES,
            wait=PATIENCE,
        )
    ],
)

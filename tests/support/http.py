"""A client for an application in this process."""

from __future__ import annotations

from typing import Any

import httpx

from .waiting import PATIENCE


def client_of(app: Any, *, raises: bool = False) -> httpx.AsyncClient:
    """A client that reaches an ASGI application without a network.

    An exception that the application lets through is answered with a 500, as servers do it; with
    ``raises`` it comes out of the request, as it is.
    """
    transport = httpx.ASGITransport(app, raise_app_exceptions=raises)
    return httpx.AsyncClient(transport=transport, base_url="http://shop", timeout=PATIENCE)

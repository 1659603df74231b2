"""``weblock status``: the status page by itself, on this machine."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import parse_qs

import click

from ..contrib.asgi.protocol import App, Receive, Scope, Send
from ..contrib.status import StatusPage
from .app import Session, command, pass_session
from .output import warn

COOKIE: Final = "weblock_status"


@command("status")
@click.option("--host", default="127.0.0.1", show_default=True, help="Where to listen.")
@click.option("--port", type=click.IntRange(1, 65535), default=8765, show_default=True)
@click.option("--allow-release", is_flag=True, help="Let those who see the page take leases away.")
@click.option("--insecure", is_flag=True, help="Show it to everybody who can reach it.")
@pass_session
def status_command(
    session: Session, *, host: str, port: int, allow_release: bool, insecure: bool
) -> None:
    """Serves a page that shows the keys in use, live, to everyone who has the URL that it prints.

    Keys, holders and queues are those of the engine. Waits, losses and outages are shown by the
    page of an application, because its process is the one in which they happen.
    """
    import uvicorn

    page = StatusPage(session.locks(), insecure=True, allow_release=allow_release)
    token = "" if insecure else secrets.token_urlsafe(24)
    where = f"[{host}]" if ":" in host else host
    warn(f"weblock: http://{where}:{port}/{f'?token={token}' if token else ''}")
    app = WithToken(page, token) if token else page
    uvicorn.run(
        app,
        host=host,
        port=port,
        log_level="warning",
        lifespan="off",
        access_log=False,
        timeout_graceful_shutdown=1,  # Streams would keep it waiting.
    )


class WithToken:
    """Admits requests with the token: in the URL once, and in a cookie from then on."""

    def __init__(self, app: App, token: str) -> None:
        self._app = app
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            return
        given = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        if self._is_right(given):
            cookie = f"{COOKIE}={self._token}; HttpOnly; SameSite=Strict; Path=/"
            await _answer(send, 303, {"location": "/", "set-cookie": cookie})
        elif self._is_right(_cookie(scope)):
            await self._app(scope, receive, send)
        else:
            await _answer(
                send, 403, {"content-type": "text/plain"}, b"Use the URL with its token.\n"
            )

    def _is_right(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self._token.encode())


def _cookie(scope: Scope) -> str:
    headers = [value.decode("latin-1") for name, value in scope["headers"] if name == b"cookie"]
    pairs = (each.strip().partition("=") for header in headers for each in header.split(";"))
    return next((value for name, _, value in pairs if name == COOKIE), "")


async def _answer(send: Send, status: int, headers: Mapping[str, str], body: bytes = b"") -> None:
    encoded: list[Any] = [(name.encode(), value.encode()) for name, value in headers.items()]
    encoded.append((b"content-length", str(len(body)).encode()))
    await send({"type": "http.response.start", "status": status, "headers": encoded})
    await send({"type": "http.response.body", "body": body})

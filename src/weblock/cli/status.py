"""``weblock status``: the status page by itself, on this machine."""

from __future__ import annotations

import hmac
import secrets
from contextlib import suppress
from socket import socket
from urllib.parse import parse_qs

import click

from .. import Locks
from ..contrib.asgi.protocol import App, Receive, Scope, Send
from ..contrib.status import StatusPage
from .app import Session, command, pass_session, warn


@command("status")
@click.option("--host", default="127.0.0.1", show_default=True, help="Where to listen.")
@click.option("--port", type=click.IntRange(1, 65535), default=8765, show_default=True)
@click.option("--allow-release", is_flag=True, help="Let users of the page release keys by force.")
@click.option("--insecure", is_flag=True, help="Show the page to every client that can reach it.")
@pass_session
def status_command(
    session: Session, *, host: str, port: int, allow_release: bool, insecure: bool
) -> None:
    """Serves a page that shows the keys in use, live, to every client that has the URL that it prints.

    Keys, holders and queues are those of the engine. Waits, losses and outages are shown by the
    page of an application, because its process is the one in which they happen.
    """
    import uvicorn

    token = "" if insecure else secrets.token_urlsafe(24)
    cookie = f"weblock-{port}={token}"  # All ports of a host have the same cookies.
    page: App
    if insecure:
        page = StatusPage(session.locks(), insecure=True, allow_release=allow_release)
    else:
        page = with_token(token, cookie, session.locks(), allow_release=allow_release)
    where = f"[{host}]" if ":" in host else host

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket] | None = None) -> None:
            await super().startup(sockets)
            warn(f"weblock: http://{where}:{port}/{f'?token={token}' if token else ''}")

    config = uvicorn.Config(
        page,
        host=host,
        port=port,
        log_level="warning",
        lifespan="off",
        access_log=False,
        timeout_graceful_shutdown=1,  # Streams would keep it waiting.
    )
    with suppress(KeyboardInterrupt):  # As ``uvicorn.run`` does.
        Server(config).run()


def with_token(token: str, cookie: str, locks: Locks | str, *, allow_release: bool = False) -> App:
    """Return the page for requests that have the token as their authorization, or have the cookie.

    A browser gets the cookie by a URL with the token. That leads to the page, so that the token stays
    in no history, log or referrer.
    """

    def is_sent(scope: Scope) -> bool:
        fields = [
            part
            for name, value in scope["headers"]
            if name.lower() in (b"authorization", b"cookie")
            for part in value.split(b"; ")
        ]
        credentials = cookie.encode(), f"Bearer {token}".encode()
        return any(hmac.compare_digest(each, one) for each in credentials for one in fields)

    page = StatusPage(locks, authorize=is_sent, allow_release=allow_release)

    async def enter(scope: Scope, receive: Receive, send: Send) -> None:
        given = parse_qs(scope.get("query_string", b"").decode("latin-1")).get("token", [""])[0]
        if not hmac.compare_digest(given.encode(), token.encode()):
            await page(scope, receive, send)
            return
        keep = f"{cookie}; Path=/; HttpOnly; SameSite=Lax"
        fields = [
            (b"location", b"./"),
            (b"set-cookie", keep.encode()),
            (b"cache-control", b"no-store"),
        ]
        await send({"type": "http.response.start", "status": 303, "headers": fields})
        await send({"type": "http.response.body"})

    return enter

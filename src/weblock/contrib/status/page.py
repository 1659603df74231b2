"""The ASGI application of the status page: HTML, JSON or a stream, whichever the request accepts.

While clients watch a page, it asks the engine once a second, however many they are. ``History`` has what happened in this
process lately: waits, outages, losses, and what was taken away by force.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import inspect
import json
import math
import os
import re
import socket
import threading
import time
import weakref
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Unpack

from ... import events
from ..._api import BaseLocks
from ..._options import LocksOptions
from ..._platform.forks import reset_after_fork
from ..._platform.logs import and_others
from ..._runtime.observing import Observer, observe
from ...aio import AsyncLocks
from ...errors import ConfigurationError, InvalidKey, WeblockError
from ...events import Event, KeyEvent
from ...inspection import KeyInfo
from ...operating import ChangedHands, as_dict, take_away, take_away_async
from ...sync import Locks
from ..asgi.protocol import Receive, Scope, Send

Authorize = Callable[[Scope], "bool | str | Awaitable[bool | str]"]
"""Returns whether a request, by its ASGI scope, is allowed; a string is the user's name."""

STREAM: Final = 10.0
"""Seconds after which a stream ends, for a server that shuts down waits for it. Browsers ask again."""

EVERY: Final = 1.0
"""Seconds between two looks at the engine, while a client watches."""

LIMIT: Final = 500
"""Keys on a page."""

LARGEST: Final = 10_000
"""The largest request to release, in bytes."""

_HTML: Final = Path(__file__).with_name("status.html")

_JSON: Final = "application/json"


class StatusPage:
    """An ASGI application that shows the keys in use, live. Mount it anywhere: ``app.mount("/locks", page)``.

    ``locks`` is the ``AsyncLocks`` or ``Locks`` of the application, or an engine's URL, with ``options``;
    without it, ``file://``.

    ``authorize`` is called with the ASGI scope of each request, and says whether it may see the page:
    ``True``, ``False``, or the name of the user, which the audit log shows; it may be async. Without it
    nothing is shown to anybody, so ``ConfigurationError`` is raised, unless ``insecure=True`` says that
    whatever is in front of the page keeps strangers out.

    ``allow_release=True`` lets all who may see the page take a lease away; a function like
    ``authorize`` lets some of them.

    Keys, holders and queues are those of the engine: all processes see the same. Waits, losses and outages
    are those of the process that serves the page, since the last 15 minutes.
    """

    def __init__(
        self,
        locks: AsyncLocks | Locks | str | Sequence[str] = "file://",
        *,
        authorize: Authorize | None = None,
        insecure: bool = False,
        allow_release: bool | Authorize = False,
        **options: Unpack[LocksOptions],
    ) -> None:
        if authorize is None and not insecure:
            raise ConfigurationError(
                "a status page shows keys, which might name customers, to every client: give it"
                " authorize=, a function of the request's scope, or insecure=True if only operators"
                " can reach it"
            )
        if authorize is not None and not callable(authorize):
            raise ConfigurationError(
                f"authorize={authorize!r:.80} cannot be called: give a function that takes the"
                " request's scope"
            )
        if isinstance(locks, AsyncLocks | Locks):
            if options:
                raise TypeError(f"give {', '.join(options)} to the locks instead")
            self._locks: AsyncLocks | Locks = locks
        else:
            self._locks = AsyncLocks.from_url(locks, **options)
        self._authorize = authorize
        self._allow_release = allow_release
        self._last: dict[str, Any] = {}
        self._next_look = 0.0
        self._samples: deque[list[float]] = deque(maxlen=round(KEPT / EVERY))
        self._history = History(self._locks)  # It keeps nothing of the page alive.
        self._page = _HTML.read_text("utf-8")
        parts = re.findall("<(script|style)>(.*?)</", self._page, re.DOTALL)
        digests = {tag: hashlib.sha256(part.encode()).digest() for tag, part in parts}
        script, style = (base64.b64encode(digests[tag]).decode() for tag in ("script", "style"))
        self._policy = (  # It allows only the page's own script and style.
            f"default-src 'none'; script-src 'sha256-{script}'; style-src 'sha256-{style}';"
            " connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none';"
            " frame-ancestors 'none'"
        )
        stop = observe(Observer(self._history.hear, only=KINDS, immediate=True))
        self.close = weakref.finalize(self, stop)
        """Stop receiving events; the end of the page does so too."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] == "lifespan":
            kind = ""
            while kind != "lifespan.shutdown":
                kind = (await receive())["type"]
                await send({"type": f"{kind}.complete"})
            return
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1008})
            return
        user = await _answer(self._authorize, scope) if self._authorize else True
        method, accept = scope["method"], ",".join(_header(scope, b"accept"))
        if not user:
            await _reply(send, 403, {"error": "this status page is not for you"})
        elif method == "POST":
            await self._release(scope, receive, send, user=user)
        elif method not in ("GET", "HEAD"):
            await _reply(send, 405, {"error": "GET, HEAD or POST"}, allow="GET, HEAD, POST")
        elif "text/event-stream" in accept:
            await self._stream(scope, receive, send)
        elif "text/html" in accept:
            headers = {"content-security-policy": self._policy}
            await _reply(send, 200, self._page.encode(), "text/html; charset=utf-8", **headers)
        else:
            await self._look()
            await _reply(send, 200, await self._facts(scope))

    async def _facts(self, scope: Scope) -> dict[str, Any]:
        return {
            "engine": self._locks.engine,
            "scope": self._locks.scope,
            "namespace": self._locks.namespace,
            "process": f"{socket.gethostname()}:{os.getpid()}",
            "may_release": bool(await self._may_release(scope)),
            **self._last,
            **self._history.facts(),
        }

    async def _look(self) -> None:
        """List the keys now. While the engine is slow, no other stream looks."""
        began, self._next_look = time.monotonic(), math.inf
        error, infos = None, list[KeyInfo]()
        try:
            if isinstance(self._locks, AsyncLocks):
                infos += await self._locks.list(limit=LIMIT)
            else:
                infos += await asyncio.to_thread(self._locks.list, limit=LIMIT)
        except WeblockError as failure:
            error = str(failure)
        finally:
            self._next_look = began + EVERY
        now = time.time()
        held = sum(info.holder is not None for info in infos)
        waiting = sum(len(info.waiters) for info in infos)
        if error is None:
            self._samples.append([round(now, 1), held, waiting])
        infos.sort(key=lambda info: (-len(info.waiters), -info.held_for, info.key))
        self._last = {
            "at": now,
            "error": error,
            "keys": [as_dict(info) for info in infos],
            "more": len(infos) == LIMIT,
            "held": held,
            "waiting": waiting,
            "samples": [each for each in self._samples if each[0] > now - KEPT],
        }

    async def _stream(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send each update, until the client has disconnected or the stream has lasted its time."""
        await _start(send, 200, "text/event-stream; charset=utf-8")
        gone = asyncio.ensure_future(_until_gone(receive))
        end = time.monotonic() + STREAM
        try:
            more = True
            while more and not gone.done():
                # All streams share a look, by the first that comes after ``EVERY``.
                if not self._last or time.monotonic() >= self._next_look:
                    await self._look()
                data = json.dumps(await self._facts(scope))
                more = time.monotonic() < end
                body = f"retry: 300\ndata: {data}\n\n".encode()
                await send({"type": "http.response.body", "body": body, "more_body": more})
                if more:
                    await asyncio.wait({gone}, timeout=EVERY)
        finally:
            gone.cancel()

    async def _may_release(self, scope: Scope) -> bool | str:
        allowed = self._allow_release
        return await _answer(allowed, scope) if callable(allowed) else allowed

    async def _release(
        self, scope: Scope, receive: Receive, send: Send, *, user: bool | str
    ) -> None:
        """Take a lease away, if it is still the one that the user has seen."""
        if not await self._may_release(scope):
            await _reply(send, 403, {"error": "nothing can be released here"})
            return
        # No form of another site can send this type, and no script of one without asking us before.
        if not any(
            each.partition(";")[0].strip() == _JSON for each in _header(scope, b"content-type")
        ):
            await _reply(send, 415, {"error": f"send {_JSON}"})
            return
        try:
            key, fence = await _wanted(receive)
            by = f"{user if isinstance(user, str) else 'somebody'} (status page)"
            if isinstance(self._locks, AsyncLocks):
                taken = await take_away_async(self._locks, key, fence=fence, by=by)
            else:
                taken = await asyncio.to_thread(take_away, self._locks, key, fence=fence, by=by)
        except WeblockError as error:
            status = 400 if isinstance(error, InvalidKey) else 503
            await _reply(send, status, {"error": str(error)})
        except (ChangedHands, ValueError, RecursionError) as error:
            status = 409 if isinstance(error, ChangedHands) else 400
            await _reply(send, status, {"error": str(error)})
        else:
            await _reply(send, 200, {"released": taken is not None})


async def _answer(function: Authorize, scope: Scope) -> bool | str:
    answer = function(scope)
    return await answer if inspect.isawaitable(answer) else answer


async def _wanted(receive: Receive) -> tuple[str, int]:
    """Return the key and the fence that a request to release names. Raises ``ValueError``."""
    body, more = b"", True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ValueError("the request ended too early")
        body += message.get("body", b"")
        more = message.get("more_body", False)
        if len(body) > LARGEST:
            raise ValueError("the request is too large")
    match json.loads(body):
        case {"key": str(key), "fence": int(fence)}:
            return key, fence
        case _:
            raise ValueError('send {"key": ..., "fence": ...}')


def _header(scope: Scope, wanted: bytes) -> list[str]:
    return [value.decode("latin-1") for name, value in scope["headers"] if name.lower() == wanted]


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _start(send: Send, status: int, kind: str, **more: str) -> None:
    headers = {
        "content-type": kind,
        "cache-control": "no-store",
        "vary": "accept",
        "x-content-type-options": "nosniff",
        "x-accel-buffering": "no",  # nginx would keep a stream back.
        "referrer-policy": "no-referrer",
        **more,
    }
    encoded = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": encoded})


async def _reply(
    send: Send, status: int, body: bytes | dict[str, Any], kind: str = _JSON, **headers: str
) -> None:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    await _start(send, status, kind, **{"content-length": str(len(data)), **headers})
    await send({"type": "http.response.body", "body": data})


KEPT: Final = 15 * 60.0
"""Seconds for which things are remembered."""

MOST: Final = 100
"""How many incidents are remembered; a flood pushes the oldest ones out."""

SLICE: Final = 10.0
"""Seconds of each slice in which waits are summed up."""

INCIDENTS: Final[Mapping[type[Event], tuple[str, str]]] = {
    events.Lost: ("problem", "lease {fence} of {label} was lost: {reason}"),
    events.Unavailable: ("problem", "the engine could not serve a caller: {cause}"),
    events.FailedOpen: ("problem", "{label} runs without the lock: {cause}"),
    events.Forced: ("warning", "{by} took it from {holder}{and_others}, by force"),
    events.AtRisk: (
        "warning",
        "lease {fence} of {label} was not renewed, and expires in {remaining:.1f} s",
    ),
    events.Recovering: (
        "warning",
        "the engine grants nothing for another {retry_after:.0f} s: {cause}",
    ),
    events.TimedOut: ("warning", "{label} waited {waited:.1f} s and timed out"),
    events.Refused: ("warning", "{label} was rejected: {waiters} were waiting"),
    events.Available: (
        "ok",
        "the engine is available again, after {lasted:.1f} s and {requests} failed requests",
    ),
}
"""The events that are incidents: the severity of each, and a sentence about it without the key."""

KINDS: Final = frozenset({*INCIDENTS, events.Acquired, events.GaveUp, events.Repeated})
"""The events that are observed."""


class History:
    """Receives events from any thread, and returns what it remembers of those that concern some locks.

    These are the events of their engine, and of the keys of their namespace.
    """

    def __init__(self, locks: BaseLocks, now: Callable[[], float] = time.time) -> None:
        self._engine, self._namespace = locks.engine, locks.namespace
        self._now = now
        self.after_fork()
        reset_after_fork(self)

    def after_fork(self) -> None:
        """Start empty in a forked child."""
        self._guard = threading.Lock()
        self._incidents: deque[dict[str, Any]] = deque(maxlen=MOST)
        self._waits: deque[list[float]] = deque(maxlen=round(KEPT / SLICE))
        self._repeats: deque[tuple[float, Counter[str]]] = deque(maxlen=round(KEPT / SLICE))

    def hear(self, event: Event) -> None:
        """Remember an event. It does so within microseconds."""
        if event.engine != self._engine or (
            isinstance(event, KeyEvent) and event.namespace != self._namespace
        ):
            return
        now = self._now()
        waited, start = getattr(event, "waited", None), now - now % SLICE
        with self._guard:
            if isinstance(event, events.Repeated):
                if not self._repeats or self._repeats[-1][0] != start:
                    self._repeats.append((start, Counter()))
                self._repeats[-1][1][event.outcome] += 1
            if waited is not None:
                if not self._waits or self._waits[-1][0] != start:
                    self._waits.append([start, 0, 0.0])
                self._waits[-1][1] += 1
                self._waits[-1][2] = max(self._waits[-1][2], round(waited, 3))
            if type(event) in INCIDENTS:
                level, text = INCIDENTS[type(event)]
                facts = dict(event.facts())
                besides = and_others(event.others) if isinstance(event, events.Forced) else ""
                text = text.format(**facts, and_others=besides)
                what = {"name": event.name, "key": facts.get("key"), "level": level}
                last = self._incidents[-1] if self._incidents else {}
                if what.items() <= last.items():  # Many of a kind must not push out all others.
                    last.update(at=now, count=last["count"] + 1, text=text)
                else:
                    self._incidents.append({"at": now, "count": 1, "text": text, **what})

    def facts(self) -> dict[str, Any]:
        """Return what a page tells.

        ``waits`` are, for each slice of time, when it began, how many waits ended, and the longest, in seconds.
        ``repeats`` are the requests with a known idempotency key that were not executed, by outcome.
        ``incidents`` are what went wrong, the last first.
        """
        oldest, repeats = self._now() - KEPT, Counter(replayed=0, running=0, reused=0)
        with self._guard:
            for start, counts in self._repeats:
                repeats.update(counts if start >= oldest else {})
            return {
                "waits": [list(each) for each in self._waits if each[0] >= oldest],
                "repeats": dict(repeats),
                "incidents": [
                    dict(each) for each in reversed(self._incidents) if each["at"] >= oldest
                ],
            }

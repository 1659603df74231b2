"""The locks of one request of an ASGI application."""

from __future__ import annotations

import asyncio
import functools
import sys
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, Self, TypeVar, Unpack

from ..._adapting import Acquired
from ..._api import BaseLocks
from ..._options import Duration, HoldOptions
from ..._platform.threads import running_loop
from ...aio import AsyncLease, AsyncLocks
from ...errors import ConfigurationError
from ...keys import CheckedKey, in_order
from ...sync import Lease
from ..kit import Book, RequestLeases, innermost
from .client import LOOK_AFTER, Inbox, Outbox
from .protocol import Scope

SCOPE_KEY: Final = "weblock"

T = TypeVar("T")


class RequestLease(AsyncLease, Lease):
    """The lease of a request: an ``AsyncLease`` on the event loop, a ``Lease`` in a thread.

    A request is served on both: by dependencies and endpoints that are ``async def``, by others in
    threads. ``await lease.extend(5)`` extends it for the former, ``lease.extend(5)`` for the latter.
    """

    __slots__ = ("loop",)

    loop: asyncio.AbstractEventLoop
    """The event loop that serves the request."""

    def extend(self, by: Duration) -> Any:
        """Move the deadline into the future. See ``AsyncLease.extend`` and ``Lease.extend``."""
        return self._here(AsyncLease.extend(self, by))

    def hand_over(self, *, ttl: Duration | None = None) -> Any:
        """Return a token that continues this lease elsewhere. See ``AsyncLease`` and ``Lease.hand_over``."""
        return self._here(AsyncLease.hand_over(self, ttl=ttl))

    def release(self) -> Any:
        """Give the keys back before the request ends. See ``AsyncLease`` and ``Lease.release``."""
        return self._here(AsyncLease.release(self))

    def on_lost(self, callback: Callable[[], None]) -> None:
        """Call a function once when the lease is lost: in the event loop, or in another thread."""
        api = AsyncLease if running_loop() else Lease
        api.on_lost(self, callback)

    def on_ask_release(self, callback: Callable[[], None]) -> None:
        """Call a function once when another caller asks for the key, as ``on_lost`` does."""
        api = AsyncLease if running_loop() else Lease
        api.on_ask_release(self, callback)

    def __enter__(self) -> Self:
        """Return the lease, which is released when the block ends."""
        if running_loop():
            raise TypeError(
                f"{self!r} was entered with `with` on an event loop, which it would block: write async with"
            )
        return self

    def _here(self, work: Coroutine[Any, Any, T]) -> Coroutine[Any, Any, T] | T:
        """Return the work for an event loop to await; in a thread, wait until it is done."""
        if running_loop():
            return work
        return asyncio.run_coroutine_threadsafe(work, self.loop).result()


class AsyncRequestLocks(RequestLeases[RequestLease]):
    """Acquires for one request. The layer around the application releases, when it has returned.

    While the request waits, its client is watched (``inbox``); from its first key on, the response is
    held back (``outbox``).

    Of layers inside one another, each has one. The outermost waits for all of them: only it hears the
    client, and the server that cancels, whatever they withhold from the application.
    """

    lost = False
    """Whether a lease was lost whose loss is to interrupt the request."""
    interrupted = False
    """Whether the endpoint or the stream of the request was cancelled, since its lease was lost."""

    def __init__(
        self,
        locks: AsyncLocks,
        scope: Scope,
        inbox: Inbox,
        outbox: Outbox,
        *,
        within: Self | None = None,
    ) -> None:
        # Not the scope itself, which has us: that cycle would be left to the garbage collector.
        is_http = scope["type"] == "http"
        method = scope["method"] if is_http else "WEBSOCKET"
        super().__init__(within or Book(method, scope["path"], loop=outbox.loop))
        self.within: Final = within
        self.loop = outbox.loop
        self.locks = locks
        self._inbox = inbox
        self._client: Inbox = within._client if within else inbox  # noqa: SLF001 - of the same class
        self._outbox = outbox if is_http else None
        outbox.at_end = self.at_end
        self.endpoints: Final[list[asyncio.Task[Any]]] = []
        """The tasks that run an endpoint at this moment, which may be cancelled."""

    @property
    def streams(self) -> bool:
        """Whether a part of the response has been sent, and more follows."""
        return self._outbox is not None and self._outbox.is_streaming

    def acquire(self, *keys: str, **options: Unpack[HoldOptions]) -> Any:
        """Return the lease of the keys, a ``RequestLease`` that is released when the request ends.

        Write ``await request_locks().acquire("cart:7")`` in async code, and
        ``request_locks().acquire("cart:7")`` in a thread, such as that of a ``def`` endpoint. Keys that
        this request holds are not acquired again. Acquire keys that belong together in one call: two
        requests that acquire the same keys in different orders wait for each other until one times out.

        Raises the errors of ``AsyncLocks.acquire``, and ``ConfigurationError`` if a key is not a string
        or the request has ended. If the client disconnects, the wait ends.
        """
        if not keys or not all(isinstance(key, str) for key in keys):
            raise ConfigurationError(
                f"acquire{keys!r:.80} has no key, or one that is not a string. Pass one string or"
                ' several, such as acquire("cart:7", "stock:3").'
            )
        ordered = in_order(keys)
        here = running_loop()
        if here is self.loop:
            return self.hold(ordered, options)
        work = self._hold_for_a_thread(ordered, options)
        waiting = asyncio.run_coroutine_threadsafe(work, self.loop)
        # A thread may run a loop of its own, by ``asyncio.run``.
        return asyncio.wrap_future(waiting) if here else waiting.result()

    async def _hold_for_a_thread(
        self, keys: Sequence[CheckedKey], options: HoldOptions
    ) -> RequestLease:
        """Acquire keys for a thread that waits. Another thread may take its place in anyio's pool.

        Otherwise, forty waiting requests would occupy all threads of the pool, and the holder's
        endpoint would find none to run in.
        """
        anyio = sys.modules.get("anyio")  # It is loaded if the thread is one of its pool.
        if anyio is None:
            return await self.hold(keys, options)
        limiter = anyio.to_thread.current_default_thread_limiter()
        limiter.total_tokens += 1
        try:
            return await self.hold(keys, options)
        finally:
            limiter.total_tokens -= 1

    def hold_back(self, background: Callable[[], object] | None = None) -> None:
        """Make the response wait, here and farther out, until the work is done, if none was sent yet.

        ``background`` returns whether tasks follow the response, for which it does not wait. Called
        before a key is made: the error of one that cannot be made may have to replace a response.
        """
        if self._outbox:
            self._outbox.leases, self._outbox.background = self.leases, background
        if self.within:
            self.within.hold_back(background)

    async def read_ahead(self) -> None:
        """Return when the body has arrived, or 64 KiB of it. Raises ``BodyTimeout`` and ``ClientGone``."""
        await self._client.read_ahead(self._inbox)

    async def hold(self, keys: Sequence[CheckedKey], options: HoldOptions) -> RequestLease:
        """Acquire keys that ``in_order`` returned; for adapters. See ``acquire``."""
        outbox = self._outbox
        if outbox and not self.over:
            outbox.leases = self.leases
        ended: Sequence[Any] = ()
        if self.book.sessions and self.book.missing(self.locks, keys):
            from ..sqlalchemy.sessions import (
                end_reading_of,
                leave_as_read,
                read_all_again,
                sessions_of,
            )

            ended = [await end_reading_of(session) for session in sessions_of(self.book)]
        client = self._client
        try:
            while client.turn:  # Another task of this request acquires, the same key perhaps.
                await asyncio.wait({client.turn})
            turn = client.turn = asyncio.Future(loop=self.loop)
            try:
                await client.read_ahead(self._inbox)
                lease = await self.take(self.locks, keys, options, client.begin_watch)
            except asyncio.CancelledError:
                client.refuse_if_gone()
                raise
            finally:
                client.turn = None
                turn.set_result(None)
                if client.waiter:
                    client.end_watch()
                if outbox:
                    outbox.waited = self.waited
        except BaseException:
            if ended:
                leave_as_read(ended)
            raise
        self._inbox.withholds = True
        if ended:
            await read_all_again(ended)
        return lease

    @contextmanager
    def telling(self) -> Iterator[None]:
        """Let the application see a disconnect while a lock of its own, inside of this, waits.

        For a framework that cancels its request then, as Django does. Most keys are free, so it begins
        after a while: what is not waiting must not be cancelled.
        """
        told: list[Inbox] = []

        def tell() -> None:
            told.extend(self._inboxes())
            for each in told:
                each.follow_wait(True)  # noqa: FBT003 - as a callback is called

        timer = self.loop.call_later(LOOK_AFTER, tell)
        try:
            yield
        finally:
            timer.cancel()
            for each in told:
                each.follow_wait(False)  # noqa: FBT003 - as above

    def _inboxes(self) -> list[Inbox]:
        """Return its own, and those farther out, each of which withholds a disconnect by itself."""
        farther_out = self.within._inboxes() if self.within else ()  # noqa: SLF001 - of the same class
        return [self._inbox, *farther_out]

    def interrupt(self, task: asyncio.Task[Any] | None) -> None:
        """Cancel what a task does since a lease was lost: its endpoint, or the stream that it sends; once.

        Never a dependency, which may commit. If the task runs one, the endpoint is not begun, and a
        stream is cancelled when it begins.
        """
        if self.over or self.interrupted or task is None or task.done():
            return
        self.lost = True
        if self.streams or task in self.endpoints:
            self.interrupted = True
            task.cancel()
        elif self._outbox:
            self._outbox.on_stream = functools.partial(self.interrupt, task)

    def leave(self) -> bool:
        """Record that the request was cancelled, and return whether the work may be cancelled.

        Work inside a lock may not, unless it is a stream; but it waits for no other lock then, nor for
        its client.
        """
        if not self.leases or self.streams:
            return True
        self._client.leave()
        self._inbox.cut()
        return False

    def kind_of_lease(self, locks: BaseLocks) -> type[RequestLease]:  # noqa: ARG002 - of either API
        """Return the class that works on the event loop and in threads."""
        return RequestLease

    def new_lease(self, locks: BaseLocks, acquired: Acquired) -> RequestLease:  # noqa: ARG002 - as above
        """Return what was acquired as a lease for users of either API."""
        lease = RequestLease(*acquired)
        lease.loop = self.loop
        return lease


def request_locks(scope: Scope | None = None) -> AsyncRequestLocks:
    """Return the locks of a request: the one with this scope, or else the one that the caller serves.

    Without a scope, the request is found in the context (``contextvars``), which the tasks and threads
    of a request inherit. So a service function can lock without knowing the request, and the lease
    lasts until the request's work has been committed. If the application has its own locks, as
    ``install`` gives them, they are used; else those of the ``LockMiddleware``.

    Raises ``ConfigurationError`` outside a request, if weblock is not installed in the application, or
    if no rule of its ``LockMiddleware`` matches the request.
    """
    if scope is None:
        found = innermost(AsyncRequestLocks, for_application=True)
    else:
        found = scope.get(SCOPE_KEY)
        # Checked here, because each request comes by, and few need more.
        if found is not None and (found.of_rules or found.over):
            found = innermost(AsyncRequestLocks, found.book, for_application=True) or found
    if found is None:
        raise ConfigurationError(
            "weblock serves no request here. Call weblock.contrib.fastapi.install(app) once, where you"
            " create the application; if you use LockMiddleware instead, add a rule that matches this"
            " request. Outside a request, use locks.hold(...).",
            code="installation",
        )
    return found

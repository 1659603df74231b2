"""``lock``: a guard of Litestar that acquires keys before the handler runs."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Unpack

from litestar.connection import ASGIConnection, WebSocket
from litestar.exceptions import WebSocketException
from litestar.handlers import BaseRouteHandler

from ..._options import HoldOptions
from ...errors import ConfigurationError, WeblockError
from ...keys import CheckedKey
from ..asgi import RequestLease, request_locks
from ..asgi.protocol import TRY_AGAIN_LATER
from ..kit import KeyFunction, LockSpec, name_of, problem_of, request_values

CALLS: Final = "weblock.guards"
"""How many of a request's guards that lock have been called."""

Connection = ASGIConnection[Any, Any, Any, Any]

LEASE_KEY: Final = "weblock.lease"
"""Where the scope of a request has the lease of the lock that is nearest to its handler."""


@dataclass(frozen=True, repr=False)
class Lock(LockSpec):
    """A description of what to lock, which Litestar calls as a guard.

    The locks of a handler are acquired together by the last of them, in one order, so that two handlers with
    the same locks on different layers do not wait for each other. Guards between them have run by then.
    """

    async def __call__(self, connection: Connection, handler: BaseRouteHandler) -> None:
        """Acquire the locks of a request, when this is the last of its guards that locks.

        Raises what ``AsyncLocks.acquire`` raises; for a websocket, ``WebSocketException``.
        """
        locks = locks_of(handler)
        scope: Any = connection.scope
        scope[CALLS] = scope.get(CALLS, 0) + 1  # The same lock may stand on several layers.
        if scope[CALLS] < len(locks):
            return
        try:
            await _acquire(connection, locks)
        except WeblockError as error:
            problem = problem_of(error)
            if problem and isinstance(connection, WebSocket):
                raise WebSocketException(detail=problem.code, code=TRY_AGAIN_LATER) from error
            raise

    def keys_of(self, connection: Connection) -> tuple[CheckedKey, ...]:
        """Return the keys of a request. Raises ``InvalidKey`` for one that cannot be made."""
        values_for = partial(
            request_values,
            path=connection.path_params,
            query=connection.scope["query_string"].decode("latin-1"),
            headers=lambda name: connection.headers.getall(name, []),
        )
        return self.made_of(values_for, lambda function: function(connection))


def lock(*keys: str | KeyFunction, **options: Unpack[HoldOptions]) -> Lock:
    """Return a guard that holds keys while a request is served: ``guards=[lock("cart:{cart_id}")]``.

    It stands in the ``guards`` of a handler, a controller, a router or the ``LockedLitestar``. Guards before it
    run before the lock is acquired: put those that check who the client is in front.

    Args:
        *keys: Templates, which are filled in from the request: ``"cart:{cart_id}"`` from the path
            parameters, as the route converts them, ``{query.x}``, ``{header.x}`` and ``{cookie.x}`` from these. Or
            functions that take the connection, do not block, and return a key or several, or ``None`` to lock
            nothing. All keys are held together, all or none.
        **options: Override those of the application's locks: see ``HoldOptions``.

    Raises:
        ConfigurationError: A key template or an option cannot work.
    """
    made = Lock.of(keys, options)
    for function in made.functions:
        if inspect.iscoroutinefunction(function):
            raise ConfigurationError(
                f"key function {name_of(function)} is async: write a plain function, or call"
                " `await request_locks().acquire(key)` in the handler",
                code="key_function",
            )
    return made


def lease_of(connection: Connection) -> RequestLease:
    """Return the lease of the lock that is nearest to the running handler.

    Raises ``ConfigurationError`` where no lock is held, also because its key function returned ``None``.
    """
    lease = connection.scope.get(LEASE_KEY)
    if not isinstance(lease, RequestLease):
        raise ConfigurationError(
            f"the request to {connection.scope['path']!r:.100} holds no lock: add lock(...) to the"
            " guards of its handler",
            code="no_lease",
        )
    return lease


def locks_of(handler: BaseRouteHandler) -> list[Lock]:
    """Return the locks of a handler and of the layers around it, from the outermost."""
    return [each for each in handler.resolve_guards() if isinstance(each, Lock)]


async def _acquire(connection: Connection, locks: list[Lock]) -> None:
    scope: Any = connection.scope
    request = request_locks(scope)
    keys = {each: each.keys_of(connection) for each in locks}
    wanted = [(each, request.locks, keys[each]) for each in keys]
    for spec, _, missing in request.book.in_turn(wanted):
        await request.hold(missing, spec.options)
    request.book.check()  # Some may have been lost while the request waited for others.
    if nearest := keys[locks[-1]]:
        scope[LEASE_KEY] = request.lease_of(request.locks, nearest)

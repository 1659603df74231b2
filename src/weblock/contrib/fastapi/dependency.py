"""The dependency.

Annotations are evaluated here, not postponed: FastAPI cannot resolve those of a callable object's
method from their text.
"""

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NoReturn, Unpack, get_args

from fastapi import BackgroundTasks, Depends
from fastapi.requests import HTTPConnection

from ..._options import HoldOptions, Options
from ...aio import AsyncLease
from ...errors import ConfigurationError
from ...keys import KeyTemplate
from ..asgi import request_locks
from .progress import Progress
from .values import values_for

OnLost = Literal["cancel", "continue"]

KeyFunction = Callable[..., Any]
"""A dependency that returns a key, or several: with parameters of its own, ``def`` or async."""


@dataclass(frozen=True)
class Lock:
    """A description of what to lock: equal for equal arguments, and hashable.

    As a dependency it acquires, waiting on the event loop also for ``def`` endpoints, and gives
    the ``AsyncLease``. The layer that ``install`` adds releases, when the request's work is done.
    """

    keys: tuple[KeyTemplate | KeyFunction, ...]
    options: tuple[tuple[str, object], ...]
    on_lost: OnLost = "cancel"

    def __post_init__(self) -> None:
        # FastAPI sees key functions as what this depends on, and solves them before.
        functions = [key for key in self.keys if not isinstance(key, KeyTemplate)]
        signature = inspect.signature(self._hold)
        parameters = list(signature.parameters.values())[:-1] + [
            inspect.Parameter(
                f"key_{number}",
                inspect.Parameter.KEYWORD_ONLY,
                annotation=Annotated[object, Depends(function)],
            )
            for number, function in enumerate(functions)
        ]
        object.__setattr__(self, "__signature__", signature.replace(parameters=parameters))

    @property
    def dependency(self) -> NoReturn:
        """Not there: FastAPI asks for it where ``Depends`` was left out."""
        keys = ", ".join(getattr(key, "text", getattr(key, "__name__", "...")) for key in self.keys)
        raise TypeError(f"lock({keys!r}) is no dependency by itself: write Depends(lock({keys!r}))")

    async def __call__(self, *args: Any, **kwargs: Any) -> AsyncLease:
        """The lease, when it is this request's turn."""
        return await self._hold(*args, **kwargs)

    async def _hold(
        self, connection: HTTPConnection, background: BackgroundTasks, **made: object
    ) -> AsyncLease:
        locks = request_locks(connection.scope)
        progress = Progress(connection.scope, locks)
        locks.hold_back(lambda: bool(background.tasks))
        of_functions = iter(made.values())
        keys: list[str] = []
        for key in self.keys:
            if isinstance(key, KeyTemplate):
                keys.append(key.fill(values_for(key, connection)))
            else:
                keys += _keys_of(key, next(of_functions))
        lease = await locks.acquire(*keys, **dict(self.options))  # type: ignore[arg-type]
        if self.on_lost == "cancel":
            lease.on_lost(progress.interrupt)
        return lease


def lock(
    *keys: str | KeyFunction, on_lost: OnLost = "cancel", **options: Unpack[HoldOptions]
) -> Lock:
    """The dependency that holds ``keys`` while a request is served: ``Depends(lock("cart"))``.

    Templates are filled in from the request: ``lock("cart:{cart_id}")`` and ``{path.cart_id}`` from
    path parameters, ``{query.x}`` and ``{header.x}`` from what they say. A function is a
    dependency that returns a key, or several. All keys are held together, all or none. ``options``
    go before those of ``install``: ``ttl``, ``wait`` and so on, in seconds.

    When the lease is lost, an ``async def`` endpoint is cancelled. ``on_lost="continue"`` lets it run
    on; it finds out at ``lease.check()``, as a ``def`` endpoint does, or when it answers.

    A request that does not get the lock in time is answered with 409, one whose engine is down or
    whose lease was lost with 503, as problem details. Raises ``ConfigurationError`` for a key
    template or an option that cannot work.
    """
    if not keys:
        raise TypeError("name at least one key: lock('create_item')")
    Options().of_call(options)  # What cannot work is refused here, not at the first request.
    if on_lost not in get_args(OnLost):
        raise ConfigurationError(f"on_lost={on_lost!r:.80} must be 'cancel' or 'continue'")
    return Lock(tuple(map(_parsed, keys)), tuple(sorted(options.items())), on_lost)


def _parsed(key: str | KeyFunction) -> KeyTemplate | KeyFunction:
    if callable(key):
        return key
    template = KeyTemplate.parse(key)
    template.in_request()
    return template


def _keys_of(function: KeyFunction, made: Any) -> list[str]:
    keys = [made] if isinstance(made, str) or not isinstance(made, Iterable) else list(made)
    if not keys or not all(isinstance(key, str) for key in keys):
        raise ConfigurationError(
            f"key function {getattr(function, '__qualname__', function)!s} gave {made!r:.80}: a key"
            " is a string; several are a list of strings"
        )
    return keys

"""The dependency.

Annotations are evaluated here, not postponed: FastAPI cannot resolve those of a callable object's
method from their text.
"""

import asyncio
import functools
import inspect
import weakref
from collections.abc import Coroutine
from typing import Annotated, Any, Final, Literal, NoReturn, Self, Unpack, get_args

from fastapi import BackgroundTasks, Depends, params
from fastapi.requests import HTTPConnection

from ..._adapting import when
from ..._options import HoldOptions, Options
from ...aio import call_in
from ...errors import ConfigurationError
from ...keys import CheckedKey, KeyTemplate, in_order
from ..asgi import AsyncRequestLocks, RequestLease, request_locks
from ..asgi.request import SCOPE_KEY
from ..kit.values import KeyFunction, keys_made_by, parsed
from .declared import MakesKeys, known_of, values_for

OnLost = Literal["cancel", "continue"]


class NotOfRequest:
    """Marks a parameter of ``lock``: FastAPI takes it for one of requests, given ``Depends(lock)``."""

    def __repr__(self) -> str:
        return "not of a request"

    def __get_pydantic_core_schema__(self, *_: object) -> NoReturn:
        """Raise ``TypeError``: Pydantic asks how the parameter is read from a request."""
        raise TypeError(
            'Depends(lock) names no key: write Depends(lock("create_item")), or'
            ' Depends(lock("item:{item_id}")) with a parameter of the path'
        )


class LockDependency(MakesKeys, params.Depends):
    """A description of what to lock. ``lock`` returns the same object for equal arguments.

    As a dependency it acquires, waiting on the event loop also for ``def`` endpoints, and gives
    the ``RequestLease``. The layer that ``install`` adds releases, when the request's work is done.

    It is a ``Depends`` itself: where that was forgotten, FastAPI would take it for a default or for a
    note of its user's, and the endpoint would run without its lock.
    """

    def __init__(
        self,
        keys: tuple[KeyTemplate | KeyFunction, ...],
        options: tuple[tuple[str, object], ...],
        on_lost: OnLost,
    ) -> None:
        super().__init__(self)
        # FastAPI sees key functions as what this depends on, and solves them before.
        functions = [key for key in keys if not isinstance(key, KeyTemplate)]
        signature = inspect.signature(self._acquire)
        parameters = list(signature.parameters.values())[:-1] + [
            inspect.Parameter(
                f"key_{number}",
                inspect.Parameter.KEYWORD_ONLY,
                annotation=Annotated[object, Depends(function)],
            )
            for number, function in enumerate(functions)
        ]
        vars(self).update(
            keys=keys,
            options=options,
            on_lost=on_lost,
            __signature__=signature.replace(parameters=parameters),
            # Where FastAPI looks to see whether to await what it gets, and not to call it in a thread.
            __call__=LockDependency._acquire,
        )

    keys: tuple[KeyTemplate | KeyFunction, ...]
    options: tuple[tuple[str, object], ...]
    on_lost: OnLost

    # Those of ``Depends`` compare what it depends on, which is the object itself.
    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def __deepcopy__(self, _memo: object) -> Self:
        """Return the same object, which never changes."""
        return self

    def __repr__(self) -> str:
        keys = [
            repr(key.text) if isinstance(key, KeyTemplate) else _name_of(key) for key in self.keys
        ]
        options = [f"{name}={value!r}" for name, value in self.options]
        lost = [] if self.on_lost == "cancel" else [f"on_lost={self.on_lost!r}"]
        return f"lock({', '.join([*keys, *lost, *options])})"

    def __call__(self, *function: object, **values: Any) -> Coroutine[Any, Any, RequestLease]:
        """Return the lease, when it is this request's turn. Raises ``TypeError`` as a decorator."""
        if function:
            raise TypeError(
                f"{self!r} is a dependency, not a decorator: write @app.post(...,"
                f" dependencies=[Depends({self!r})])"
            )
        return self._acquire(**values)

    async def _acquire(
        self, connection: HTTPConnection, background: BackgroundTasks, **made: object
    ) -> RequestLease:
        scope, of_functions = connection.scope, iter(made.values())
        request = request_locks(scope)
        innermost: AsyncRequestLocks = scope[SCOPE_KEY]  # The first that is given the response.
        innermost.hold_back(functools.partial(getattr, background, "tasks"))
        known = known_of(scope)
        keys: list[CheckedKey] = []
        for key in self.keys:
            if isinstance(key, KeyTemplate):
                keys.append(key.fill(values_for(key, connection, known)))
            else:
                keys += keys_made_by(key, next(of_functions))
        options: HoldOptions = dict(self.options)  # type: ignore[assignment] # lock() was given them
        lease = await request.hold(in_order(keys), options)
        if self.on_lost == "cancel":
            task = asyncio.current_task(request.loop)
            tell = functools.partial(request.interrupt, task)
            when(lease, "on_lost", functools.partial(call_in, request.loop, tell))
        return lease


def lock(
    *keys: Annotated[str | KeyFunction, NotOfRequest()],
    on_lost: OnLost = "cancel",
    **options: Unpack[HoldOptions],
) -> LockDependency:
    """Return a dependency that holds keys while a request is served: ``Depends(lock("cart"))``.

    A request that does not get the lock in time is answered with 409, one whose engine is down or
    whose lease was lost with 503, as problem details.

    Args:
        *keys: Templates, which are filled in from the request: ``"cart:{cart_id}"`` and
            ``{path.cart_id}`` from path parameters, ``{query.x}`` and ``{header.x}`` from these. Or
            functions, which are dependencies and return a key or several. All keys are held
            together, all or none.
        on_lost: ``"cancel"`` cancels an ``async def`` endpoint when its lease is lost;
            ``"continue"`` lets it run, and it finds out at ``lease.check()``, as a ``def``
            endpoint does, or when it responds.
        **options: Override those of ``install``; durations are seconds.
            ``ttl`` (10): how long the lease lasts unless it is renewed;
            ``wait`` (5): how long to wait, 0 for not at all, ``None`` without limit;
            ``max_hold`` (``None``): after how long it is no longer renewed, and is lost;
            ``renew`` (``True``): whether it is renewed while its holder lives;
            ``max_waiters`` (1000): how many callers may wait for a key;
            ``limit`` (1): how many may hold a key at once;
            ``shared`` (``False``): whether any number of shared holders have it together, and no other;
            ``label`` (host name and process id): what others see of the holder;
            ``on_unavailable`` (``"raise"``): with ``"open"``, run without a lease while the engine
            does not answer.

    Raises:
        ConfigurationError: A key template or an option cannot work.
    """
    if not keys:
        raise TypeError("name at least one key: lock('create_item')")
    Options().of_call(options)  # What cannot work is refused here, not at the first request.
    if on_lost not in get_args(OnLost):
        raise ConfigurationError(f"on_lost={on_lost!r:.80} must be 'cancel' or 'continue'")
    facts = tuple(map(parsed, keys)), tuple(sorted(options.items())), on_lost
    return _made.get(facts) or _made.setdefault(facts, LockDependency(*facts))


_made: Final[weakref.WeakValueDictionary[object, LockDependency]] = weakref.WeakValueDictionary()
"""By their facts, so that equal locks are one: FastAPI compares them several times in each request."""


def _name_of(function: object) -> str:
    return str(getattr(function, "__qualname__", function))

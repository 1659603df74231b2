"""The dependency.

Annotations are evaluated here, not postponed: FastAPI cannot resolve those of a callable object's
method from their text.
"""

import asyncio
import functools
import inspect
import weakref
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal, NamedTuple, NoReturn, Unpack, get_args

from fastapi import BackgroundTasks, Depends
from fastapi.requests import HTTPConnection

from ..._face import BaseLease
from ..._options import HoldOptions, Options
from ...aio import AsyncLease
from ...errors import ConfigurationError
from ...keys import CheckedKey, KeyTemplate, Source, in_order
from ...sync import Lease
from ..asgi import AsyncRequestLocks, RequestLease, request_locks
from ..asgi.protocol import Scope
from ..asgi.request import SCOPE_KEY
from ..request import current_book
from ..request_values import KeyFunction, keys_made_by, parsed
from .declared import Declared, MakesKeys, declared_of, sent_under

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


def _read_from_request(cls: type[BaseLease], source: Any, read: Callable[[Any], Any]) -> Any:
    """Return how Pydantic reads a lease, which it cannot; a model may allow any type."""
    try:
        return read(source)
    except Exception as error:
        raise TypeError(
            f"{cls.__name__} is nothing that a request has: write Annotated[{cls.__name__},"
            ' Depends(lock("create_item"))] for a parameter; a response cannot have one'
        ) from error


for _face in (AsyncLease, Lease):
    # Pydantic asks the class if ``Depends`` was left out, and the class itself knows no framework.
    setattr(_face, "__get_pydantic_core_schema__", classmethod(_read_from_request))  # noqa: B010 - type checkers know no such attribute


@dataclass(frozen=True)
class LockDependency(MakesKeys):
    """A description of what to lock: equal for equal arguments, and hashable.

    As a dependency it acquires, waiting on the event loop also for ``def`` endpoints, and gives
    the ``RequestLease``. The layer that ``install`` adds releases, when the request's work is done.
    """

    keys: tuple[KeyTemplate | KeyFunction, ...]
    options: tuple[tuple[str, object], ...]
    on_lost: OnLost = "cancel"
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # FastAPI sees key functions as what this depends on, and solves them before.
        functions = [key for key in self.keys if not isinstance(key, KeyTemplate)]
        signature = inspect.signature(self._acquire)
        parameters = list(signature.parameters.values())[:-1] + [
            inspect.Parameter(
                f"key_{number}",
                inspect.Parameter.KEYWORD_ONLY,
                annotation=Annotated[object, Depends(function)],
            )
            for number, function in enumerate(functions)
        ]
        object.__setattr__(self, "__signature__", signature.replace(parameters=parameters))
        # Where FastAPI looks to see whether to await what it gets, and not to call it in a thread.
        object.__setattr__(self, "__call__", LockDependency._acquire)
        # FastAPI asks for it several times for each request.
        object.__setattr__(self, "_hash", hash((self.keys, self.options, self.on_lost)))

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        keys = [
            repr(key.text) if isinstance(key, KeyTemplate) else _name_of(key) for key in self.keys
        ]
        options = [f"{name}={value!r}" for name, value in self.options]
        lost = [] if self.on_lost == "cancel" else [f"on_lost={self.on_lost!r}"]
        return f"lock({', '.join([*keys, *lost, *options])})"

    @property
    def dependency(self) -> NoReturn:
        """Raise ``TypeError``: FastAPI reads this attribute if ``Depends`` was left out."""
        raise TypeError(f"{self!r} is no dependency by itself: write Depends({self!r})")

    def __get_pydantic_core_schema__(self, *_: object) -> NoReturn:
        """Raise ``TypeError``: Pydantic asks for it if ``Depends`` was left out of ``Annotated``."""
        raise TypeError(
            f"{self!r} is no dependency by itself: write Annotated[AsyncLease, Depends({self!r})]"
        )

    def __deepcopy__(self, _memo: object) -> NoReturn:
        """Raise ``TypeError``: FastAPI copies the default of a parameter if ``Depends`` was left out."""
        raise TypeError(
            f"{self!r} is no dependency by itself: write lease: Annotated[AsyncLease, Depends({self!r})]"
        )

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
        known = _known_of(scope)
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
            callback = functools.partial(request.interrupt, lease, task)
            # As on a loop, which we are on: the lease would look whether it is used in a thread.
            AsyncLease._call_when_lost(lease, callback)  # noqa: SLF001 - ours need no check
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
    return LockDependency(tuple(map(parsed, keys)), tuple(sorted(options.items())), on_lost)


def _name_of(function: object) -> str:
    return str(getattr(function, "__qualname__", function))


# What a key is made of: the values that the endpoint will see.


def values_for(
    template: KeyTemplate, connection: HTTPConnection, known: "Known"
) -> Mapping[str, object]:
    """The values of the request for ``template``, converted to their declared types.

    ``/items/7`` and ``/items/07`` are one item to an endpoint that declares an ``int``; so they
    must be one key too. So it is with query parameters and headers, and a declared default stands
    for one that is missing.

    Raises what FastAPI raises for the endpoint where a value does not convert,
    ``InvalidKey`` for one that was sent twice, and ``ConfigurationError`` for a path parameter that
    the path has not, and for a value that is declared in two ways.
    """
    if not template.names:
        return {}
    path, values = connection.scope["path_params"], {}
    for name, source, declared in known[template.text]:
        if source.kind == "path" and source.name not in path:
            refuse_unknown_path_parameters(template, path)
        if declared:
            value = (declared.plain_value if declared.is_plain else declared.value)(connection)
        elif source.kind == "path":
            value = path[source.name]
        else:
            value = sent_under(source, connection)
        if value is not None:
            values[name] = value
    return values


def refuse_unknown_path_parameters(template: KeyTemplate, known: Mapping[str, object]) -> None:
    """Raise ``ConfigurationError`` where the template names a path parameter that is not known."""
    for source in template.in_request().values():
        if source.kind == "path" and source.name not in known:
            there = ", ".join(map(repr, known)) or "none"
            raise ConfigurationError(
                f"lock({template.text!r}) needs the path parameter {source.name!r}, but the path"
                f" has {there}; {{query.{source.name}}} would be a query parameter, and"
                f" {{header.{source.name}}} a header"
            )


class Declaration(NamedTuple):
    """How a request has a value that a template needs."""

    name: str
    source: Source
    declared: Declared | None
    """What the endpoint or one of its dependencies declares, if one does."""


class Known(dict[str, list[Declaration]]):
    """What is known of a route that locks: by the text of a template, how it declares the values."""

    def __init__(self, route: Any) -> None:
        self._dependant: Any = getattr(route, "dependant", None)
        if self._dependant:
            self._dependant.call = _interruptible(self._dependant.call)

    def __missing__(self, text: str) -> list[Declaration]:
        """Find the declarations. Raises ``ConfigurationError`` for a value that is declared in two ways."""
        template, dependant = KeyTemplate.parse(text), self._dependant
        self[text] = [
            Declaration(name, source, dependant and declared_of(dependant, source, template))
            for name, source in template.sources.items()
        ]
        return self[text]


_of_routes: Final[dict[int, tuple[weakref.ref[Any], Known]]] = {}
"""By the ``id`` of a route, which has no hash, while it lives."""


def _known_of(scope: Scope) -> Known:
    """Return what is known of the route that serves a request."""
    route = scope.get("route")
    # Since FastAPI 0.137 ``route`` is the one of the router, without the prefix and the dependencies
    # of ``include_router``: its parameters may be declared otherwise, or not at all.
    included = scope.get("fastapi", {}).get("effective_route_context")
    if included is not None and getattr(included, "original_route", None) is route:
        route = included
    number = id(route)
    known = _of_routes.get(number)
    if known is None or known[0]() is not route:
        if route is None:
            return Known(route)
        gone = functools.partial(_of_routes.pop, number)
        known = _of_routes[number] = weakref.ref(route, gone), Known(route)
    return known[1]


def _interruptible(endpoint: Any) -> Any:
    """Return an ``async def`` endpoint as one that its request can cancel when it loses a lease.

    FastAPI has no hook between an endpoint and the dependencies around it, which nothing may
    interrupt: a commit that was sent is not undone. Others are returned as they are: cancelling the
    task that waits for a thread does not stop the thread, and a stream is cancelled by itself.
    """
    function = endpoint
    while isinstance(function, functools.partial):
        function = function.func
    call = function if inspect.isroutine(function) else type(function).__call__
    if not inspect.iscoroutinefunction(call):
        return endpoint

    @functools.wraps(endpoint, updated=())
    async def interruptible(*args: Any, **kwargs: Any) -> Any:
        request, task = current_book(), asyncio.current_task()
        if request and request.of_rules:
            request = request.of_application()
        if task is None or not isinstance(request, AsyncRequestLocks):
            return await endpoint(*args, **kwargs)
        if request.lost:  # While a dependency was at work, which runs to its end.
            request.lost.check()
        cancelled_before = task.cancelling()
        request.endpoints.append(task)
        try:
            return await endpoint(*args, **kwargs)
        except asyncio.CancelledError:
            # The dependencies around it roll back for an error, and a server cancels for another reason.
            if request.interrupted and request.lost and task.cancelling() - 1 <= cancelled_before:
                request.lost.check()
            raise
        finally:
            request.endpoints.remove(task)
            if request.interrupted:
                task.uncancel()

    return interruptible

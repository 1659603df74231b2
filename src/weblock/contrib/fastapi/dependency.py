"""The dependency.

Annotations are evaluated here, not postponed: FastAPI cannot resolve those of a callable object's
method from their text.
"""

import asyncio
import functools
import inspect
import weakref
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Annotated, Any, Final, NoReturn, Unpack

from fastapi import BackgroundTasks, params
from fastapi.requests import HTTPConnection

from ..._adapting import acquired_of
from ..._options import HoldOptions, OnLost, cancels_when_lost
from ..._runtime.runtimes import call_in
from ...errors import ConfigurationError
from ...keys import signature_of
from ..asgi import AsyncRequestLocks, RequestLease, request_locks
from ..asgi.request import SCOPE_KEY
from ..kit import KeyFunction, LockSpec, name_of, shown
from ..kit.guarding import DATABASE_GUARD, refuse_guard
from ..kit.sql import LOCK_WAIT
from .declared import Known, interrupting, known_of, needing, values_for


class NotOfRequest:
    """Marks a parameter of ``lock``: FastAPI takes it for one of requests, given ``Depends(lock)``."""

    def __get_pydantic_core_schema__(self, *_: object) -> NoReturn:
        """Raise ``TypeError``: Pydantic asks how the parameter is read from a request."""
        raise TypeError(
            'Depends(lock) names no key: write Depends(lock("create_item")), or'
            ' Depends(lock("item:{item_id}")) with a parameter of the path'
        )


_of_routes: Final[dict[int, tuple[weakref.ref[Any], Known]]] = {}
"""What is known of each route, by its ``id`` while it lives: a route has no hash."""


@dataclass(frozen=True, repr=False)
class LockDependency(LockSpec):  # noqa: PLW1641 - dataclass makes the hash
    """A description of what to lock, which ``lock`` returns.

    As a dependency it acquires, waiting on the event loop also for ``def`` endpoints, and gives
    the ``RequestLease``. The layer that ``install`` adds releases, when the request's work is done.
    """

    on_lost: OnLost = "cancel"

    def __eq__(self, other: object) -> bool:
        """Compare what was given to ``lock``, whether it is a ``Depends`` or what that calls."""
        names = (each.name for each in fields(self) if each.compare)
        same = (getattr(self, name) == getattr(other, name) for name in names)
        return isinstance(other, LockDependency) and all(same)

    @property
    def __signature__(self) -> inspect.Signature:
        """What FastAPI solves before it calls this: key functions are dependencies of it."""
        of_keys = {f"key_{number}": each for number, each in enumerate(self.functions)}
        return needing(of_keys, signature_of(self.__call__))

    async def __call__(
        self, *, connection: HTTPConnection, background: BackgroundTasks, **made: object
    ) -> RequestLease | None:
        """Return the lease, when it is this request's turn; ``None`` if its functions made no key."""
        scope, of_functions = connection.scope, iter(made.values())
        if overrides := getattr(scope.get("app"), "dependency_overrides", None):
            from .installation import locking_routes

            for other, override in overrides.items():
                alike = isinstance(other, LockDependency) and other.keys == self.keys
                # FastAPI finds only an equal lock, and ignores one of no route.
                if (
                    alike
                    and override != self
                    and not any(
                        other in found.locks for found in locking_routes(scope["app"].routes)
                    )
                ):
                    raise ConfigurationError(
                        f"dependency_overrides has {other!r}, which is not the lock of this route: write"
                        f" dependency_overrides[{self!r}]"
                    )
        route = scope.get("route")
        # Since FastAPI 0.137 ``route`` is the one of the router, without the prefix and the dependencies
        # of ``include_router``: its parameters may be declared otherwise, or not at all.
        included = scope.get("fastapi", {}).get("effective_route_context")
        if included is not None and getattr(included, "original_route", None) is route:
            route = included
        of_route = _of_routes.get(id(route))
        if of_route is not None and of_route[0]() is route:
            known = of_route[1]
        else:
            known = known_of(getattr(route, "dependant", None))
            if route is not None:
                gone = functools.partial(_of_routes.pop, id(route))
                _of_routes[id(route)] = weakref.ref(route, gone), known
        request = request_locks(scope)
        innermost: AsyncRequestLocks = scope[SCOPE_KEY]  # The first that is given the response.
        innermost.hold_back(functools.partial(getattr, background, "tasks"))
        keys = self.made_of(
            functools.partial(values_for, connection=connection, known=known),
            lambda _: next(of_functions),
        )
        if not keys:
            return None
        lease = await request.hold(keys, self.options)
        if self.on_lost == "cancel":
            task = asyncio.current_task(request.loop)
            interrupt = functools.partial(request.interrupt, task)
            tell = functools.partial(call_in, request.loop, interrupt)
            for each in acquired_of(lease)[1]:
                each.on_lost(tell)
            interrupting.set(weakref.ref(request))  # The context may outlive it.
        return lease


class _DeclaredLock(LockDependency, params.Depends):
    """A lock that is a ``Depends`` itself, so that it locks also where ``Depends`` was forgotten.

    FastAPI would take anything else for a default or for a note of its user's.
    """

    @functools.cached_property  # Cadwyn gives a copy of each ``Depends`` another one.
    def dependency(self) -> LockDependency:
        """What FastAPI calls: no ``Depends``, so that code that follows this attribute comes to an end."""
        return LockDependency(*(getattr(self, name) for name in self.__match_args__))


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
            ``{path.cart_id}`` from path parameters, ``{query.x}``, ``{header.x}`` and ``{cookie.x}`` from these. Or
            functions, which are dependencies and return a key or several. All keys are held
            together, all or none. If functions return ``None`` and there is no other key, nothing is
            locked, and the lease is ``None``.
        on_lost: ``"cancel"`` cancels an ``async def`` endpoint when its lease is lost;
            ``"continue"`` lets it run, and it finds out at ``lease.check()``, as a ``def``
            endpoint does, or when it responds.
        **options: Override those of ``install``; durations are seconds. See ``HoldOptions``.

    Raises:
        ConfigurationError: A key template or an option cannot work.
        TypeError: There is no key, or no such option.
    """
    cancels_when_lost(on_lost)  # It raises for a word that does not exist.
    return _DeclaredLock.of(keys, options, on_lost=on_lost)


GUARDED_BY: Final = "weblock_guarded_by"
"""The attribute of a dependency that ``guarded`` has returned: its locks."""


def guarded(
    get_session: Callable[..., Any], *locks: LockDependency, wait: float = LOCK_WAIT
) -> Callable[..., Any]:
    """Return a dependency that gives the session of another, once the request holds ``locks``.

    ``get_session`` is the dependency that gives an SQLAlchemy ``Session`` or ``AsyncSession``. The locks
    are acquired before it is called, and the session's commits are guarded with each of them, as
    ``weblock.contrib.sqlalchemy.guard(session, lease, fence=True, wait=wait)`` does: a commit of a
    request that slept through its lease is refused by the database, and answered with 503.

    Raises:
        TypeError: What is given is no dependency for a session, or no ``lock(...)``.
        ConfigurationError: A lock has ``limit=`` or ``shared=``: the guard needs exclusive leases.
    """
    from ..sqlalchemy import guard
    from ..sqlalchemy.sessions import rows_read_again

    example = 'write guarded(get_session, lock("create_item"))'
    given: object = get_session
    if not callable(given) or isinstance(given, LockDependency | params.Depends):
        raise TypeError(
            f"guarded(...) takes the dependency that gives the session first, and was given"
            f" {shown(get_session)}: {example}, with the function itself, not called and without Depends"
        )
    if not locks:
        raise TypeError(f"guarded(...) was given no lock: {example}")
    for lock in locks:
        if not isinstance(lock, LockDependency):
            raise TypeError(
                f"guarded(...) takes locks after the dependency of the session, and was given"
                f" {shown(lock)}: {example}, without Depends around the lock"
            )
        refuse_guard(DATABASE_GUARD, lock.options)

    async def dependency(*, session: Any, **leases: Any) -> Any:
        # The fence is written first: what authentication has read with this session is read after it.
        async with rows_read_again(session):
            for lease in filter(None, leases.values()):
                guard(session, lease, fence=True, wait=wait)
        return session

    # FastAPI solves dependencies in this order: nothing is read before the locks are held.
    needed: dict[str, Any] = {f"lease_{number}": lock for number, lock in enumerate(locks)}
    signature = needing({**needed, "session": get_session})
    dependency.__signature__ = signature  # type: ignore[attr-defined]
    dependency.__qualname__ = f"guarded({name_of(get_session)})"
    setattr(dependency, GUARDED_BY, locks)
    return dependency

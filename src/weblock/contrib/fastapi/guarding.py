"""``Depends(guarded(get_session, lock("item:{item_id}")))``: a session that the database itself guards."""

import inspect
from collections.abc import Callable
from typing import Annotated, Any, Final
from weakref import WeakSet

from fastapi import Depends, params

from ..kit import name_of, shown
from ..kit.guarding import DATABASE_GUARD, refuse_guard
from ..kit.sql import LOCK_WAIT
from .dependency import LockDependency

guarding: Final[WeakSet[Callable[..., Any]]] = WeakSet()
"""The dependencies that ``guarded`` has returned."""


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
    from ..sqlalchemy.sessions import end_reading_of, read_all_again

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
        ended = await end_reading_of(session)
        for lease in filter(None, leases.values()):
            guard(session, lease, fence=True, wait=wait)
        await read_all_again([ended])
        return session

    # FastAPI solves dependencies in this order: nothing is read before the locks are held.
    needed: dict[str, Any] = {f"lease_{number}": lock for number, lock in enumerate(locks)}
    dependency.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, annotation=Annotated[Any, Depends(needs)]
            )
            for name, needs in {**needed, "session": get_session}.items()
        ]
    )
    dependency.__qualname__ = f"guarded({name_of(get_session)})"
    guarding.add(dependency)
    return dependency

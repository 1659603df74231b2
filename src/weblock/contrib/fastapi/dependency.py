"""The dependency.

Annotations are evaluated here, not postponed: FastAPI cannot resolve those of a callable object's
method from their text.
"""

from dataclasses import dataclass
from typing import Unpack

from fastapi import BackgroundTasks
from fastapi.requests import HTTPConnection

from ..._face import HoldOptions, Options
from ...aio import AsyncLease
from ...errors import ConfigurationError
from ...keys import KeyTemplate
from ..asgi import request_locks
from .path_values import path_values


@dataclass(frozen=True)
class Lock:
    """A description of what to lock: equal for equal arguments, and hashable.

    As a dependency it acquires, waiting on the event loop also for ``def`` endpoints, and gives
    the ``AsyncLease``. The layer that ``install`` adds releases, when the request's work is done.
    """

    templates: tuple[KeyTemplate, ...]
    options: tuple[tuple[str, object], ...]

    async def __call__(self, connection: HTTPConnection, background: BackgroundTasks) -> AsyncLease:
        """The lease, when it is this request's turn."""
        locks = request_locks(connection.scope)
        locks.background = lambda: bool(background.tasks)
        locks.hold_back()
        keys = [self._fill(template, connection) for template in self.templates]
        return await locks.acquire(*keys, **dict(self.options))  # type: ignore[arg-type]

    def _fill(self, template: KeyTemplate, connection: HTTPConnection) -> str:
        values = path_values(connection, template.names)
        if missing := [name for name in template.names if name not in values]:
            there = ", ".join(map(repr, connection.path_params)) or "none"
            raise ConfigurationError(
                f"lock({template.text!r}) wants the path parameter {missing[0]!r}, but the path has"
                f" {there}: {connection.scope['path']!r:.100}"
            )
        return template.fill(values)


def lock(*keys: str, **options: Unpack[HoldOptions]) -> Lock:
    """The dependency that holds ``keys`` while a request is served: ``Depends(lock("cart"))``.

    Path parameters are filled in: ``lock("cart:{cart_id}")``. Several keys are held together, all
    or none. ``options`` go before those of ``install``: ``ttl``, ``wait`` and so on, in seconds.

    A request that does not get the lock in time is answered with 409, one whose engine is down or
    whose lease was lost with 503, as problem details. Raises ``ConfigurationError`` for a key
    template or an option that cannot work.
    """
    if not keys:
        raise TypeError("name at least one key: lock('create_item')")
    Options().of_call(options)  # What cannot work is refused here, not at the first request.
    templates = tuple(KeyTemplate.parse(key) for key in keys)
    return Lock(templates, tuple(sorted(options.items())))

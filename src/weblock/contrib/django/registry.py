"""The locks by alias: ``locks["default"]`` for threads, ``async_locks["default"]`` for tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Generic, TypeVar

from ..._face import Face
from ..._platform.forks import Mutex, enter_child, getpid, process
from ..._runtime.observing import Observer, as_observers
from ...aio import AsyncLocks
from ...errors import ConfigurationError
from ...events import Acquired
from ...sync import Locks
from . import settings
from .commits import warn_of_transaction
from .signals import announcing

L = TypeVar("L", Locks, AsyncLocks)


class LocksByAlias(Mapping[str, L], Generic[L]):
    """The locks of each alias in ``WEBLOCK``, created when they are first needed.

    Equal settings give the same object, in a test that overrides them too. Locks whose settings are
    gone are not closed automatically: they may be in use.
    """

    def __init__(self, face: type[L]) -> None:
        self._face: type[L] = face
        self._made: dict[str, L] = {}
        self._guard = Mutex()

    def __getitem__(self, alias: str) -> L:
        """Return the locks of an alias; raise ``ConfigurationError`` if it is unknown or invalid."""
        given = settings.of_alias(alias)
        found = self._made.get(given.identity)
        return self._make_once(given) if found is None else found

    def __iter__(self) -> Iterator[str]:
        return iter(settings.aliases())

    def __len__(self) -> int:
        return len(settings.aliases())

    def close_where(self, is_over: Callable[[str], bool]) -> None:
        """Close the locks on engines that are no longer needed, such as those of a test."""
        with self._guard.lock:
            gone = {key: made for key, made in self._made.items() if is_over(made.engine)}
            for key in gone:
                del self._made[key]
        for made in gone.values():
            made._close()  # noqa: SLF001 - of either face, from where no event loop may run

    def _make_once(self, given: settings.AliasSettings) -> L:
        if getpid() != process.pid:
            enter_child()
        with self._guard.lock:
            if given.identity not in self._made:
                self._made[given.identity] = self._make(given)
            return self._made[given.identity]

    def _make(self, given: settings.AliasSettings) -> L:
        try:
            own: Any = given.options.get("observers", ())
            options = given.options.copy()
            options["observers"] = (*as_observers(own), *_observers(self._face, given.alias))
            return self._face.from_url(given.url, **options)
        except ConfigurationError as error:
            raise ConfigurationError(f"WEBLOCK[{given.alias!r}]: {error}") from error


def _observers(face: type[Face], alias: str) -> Iterator[Observer]:
    """Return the observers of an alias's locks, besides those in its settings."""
    yield announcing(face, alias)
    if issubclass(face, Locks):  # Tasks have no transactions of Django's.
        yield Observer(warn_of_transaction, only=[Acquired], immediate=True)


locks = LocksByAlias(Locks)
async_locks = LocksByAlias(AsyncLocks)

"""The engines that are open in this process, and who uses them: the last user closes its engine."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final

from ._core.acquiring import Locker
from ._core.ports import Engine, Runtime, Store
from ._core.reporting import Health, Observers
from ._platform.forks import Mutex, enter_child, getpid, process, reset_after_fork
from ._platform.threads import end_later, refuse_subinterpreter
from ._runtime.runtimes import KeeperThread
from .stores import url as urls


class _Registry:
    """What is open here. One mutex for all of it, and for all who open and leave.

    Its thread can acquire it again: one that opens the engine of a URL also begins to use it. Nobody
    waits for a server or a thread with it.
    """

    def __init__(self) -> None:
        self.guard = Mutex()
        self.by_url: dict[str, Engine] = {}
        self.open: Callable[[str | Sequence[str]], Engine] = urls.open_engine
        """Opens the engine that a URL names."""
        self.in_use: dict[Engine, _InUse] = {}


_registry: Final = _Registry()


class _InUse:
    """An engine, and what all its users share: the keeper's thread, and connections.

    Each engine has a keeper of its own, so that one that does not answer delays no other's renewals.
    """

    def __init__(self, engine: Engine) -> None:
        refuse_subinterpreter()
        self.engine = engine
        self.users: set[User] = set()
        self._begin()
        reset_after_fork(self)  # After the engine, which has a new state by then.

    def _begin(self) -> None:
        self.thread = KeeperThread(self.engine)
        self._stores: dict[type[Runtime], Store] = {}

    def after_fork(self) -> None:
        """Begin anew in a forked child. The leases here are its parent's."""
        self.thread.keeper.after_fork()
        self._begin()
        for user in list(self.users):
            user.connect()

    def store_for(self, runtime: Runtime) -> Store:
        """Return the store of a world, the same one for all users, so that they share connections.

        Else each user would leave some open until the last one is gone. The keeper has a store of
        its own: renewals do not wait until a caller's request is over.
        """
        world = type(runtime)
        known = self._stores.get(world)
        # Of two that are made at the same time, all use the first. The other has nothing open.
        return known or self._stores.setdefault(world, self.engine.connect(runtime))

    def forget(self, *, url_too: bool) -> None:
        """Make the next caller that wants the engine, or with ``url_too`` its URL, open it anew.

        An interrupt may end this at any line: what is left here then is used again.
        """
        if _registry.in_use.get(self.engine) is self:
            for url, each in list(_registry.by_url.items()) if url_too else ():
                if each is self.engine:
                    _registry.by_url.pop(url, None)
            _registry.in_use.pop(self.engine, None)

    def close(self) -> None:
        self.thread.close()
        if self.engine not in _registry.in_use:  # A caller that was given it may use it again.
            self.engine.close()


class User:
    """A ``Locks`` that uses an engine, which stays open until all its users have left."""

    def __init__(self, in_use: _InUse) -> None:
        self._in_use = in_use
        self._left = False
        self._locker: Callable[[], Locker | None] = lambda: None
        self.engine = in_use.engine

    def locker(self, runtime: Runtime, observers: Observers) -> Locker:
        """Return the locker of a ``Locks``, which is connected anew in each forked child."""
        engine, in_use = self.engine, self._in_use
        locker = Locker(
            store=in_use.store_for(runtime),
            runtime=runtime,
            keeper=in_use.thread.keeper,
            switchboard=engine.switchboard,
            engine=engine.name,
            observers=observers,
            fails_as_one=engine.fails_as_one,
        )
        self._locker = weakref.ref(locker)
        # The Locks and its leases have it: without them, nothing would ever close the engine.
        weakref.finalize(locker, self._leave_later).atexit = False
        return locker

    def connect(self) -> None:
        """Have the locker use the present state of the engine."""
        if locker := self._locker():
            locker.store = self._in_use.store_for(locker.runtime)
            locker.keeper = self._in_use.thread.keeper
            locker.switchboard = self.engine.switchboard
            locker.health = Health(locker.observers)

    def _leave_later(self) -> None:
        if getpid() != process.pid:
            enter_child()
        if not self._left:
            end_later(self.leave)

    def leave(self, *, closed: bool = False) -> None:
        """Close the engine if nobody else uses it. A caller that is interrupted here may call it again.

        Its URL is forgotten first: a caller that asks for it while releases are pending gets a new one.
        But only a ``Locks`` that is ``closed`` ends what a local engine keeps for others, such as a
        lease that was handed over.
        """
        if self._left:
            return
        in_use = self._in_use
        with _registry.guard.lock:
            in_use.users.discard(self)
            is_last = not in_use.users
            if is_last:
                in_use.forget(url_too=closed or not in_use.engine.keeps_anything())
        if is_last:
            in_use.close()
        self._left = True


def use(engine: Engine) -> User:
    """Return a new user of a ready engine."""
    if getpid() != process.pid:
        enter_child()
    with _registry.guard.lock:
        in_use = _registry.in_use.get(engine)
        if in_use is None:
            in_use = _registry.in_use[engine] = _InUse(engine)
        user = User(in_use)
        in_use.users.add(user)
        return user


def use_url(url: str | Sequence[str]) -> User:
    """Return a new user of the engine that ``url`` names.

    Raises ``ConfigurationError`` for a URL that no engine accepts.
    """
    if getpid() != process.pid:
        enter_child()
    with _registry.guard.lock:
        return use(engine_for(url))


def engine_for(url: str | Sequence[str]) -> Engine:
    """Return the engine that ``url`` names, the same one for all callers in this process.

    Several URLs name a quorum. Raises ``ConfigurationError`` for a URL that no engine accepts.
    """
    if getpid() != process.pid:
        enter_child()
    urls.refuse_what_is_no_url(url)
    name = "\n".join(map(str, url)) if isinstance(url, list | tuple) else str(url)
    with _registry.guard.lock:
        by_url = _registry.by_url
        if name not in by_url:
            refuse_subinterpreter()  # Before a driver fails to be imported there.
            # A process with two engines in one directory could not see that it waits for itself.
            same = [
                each for each in list(by_url.values()) if isinstance(url, str) and each.serves(url)
            ]
            by_url[name] = same[0] if same else _registry.open(url)
        return by_url[name]


opened_by_url: Final[weakref.WeakSet[Any]] = weakref.WeakSet()
"""The ``Locks`` and ``AsyncLocks`` that open their engine again by its URL."""


@contextmanager
def opening_instead(open_engine: Callable[[str | Sequence[str]], Engine]) -> Iterator[None]:
    """Open other engines than URLs name while the block runs, also for URLs that are open already."""
    with _registry.guard.lock:
        before = _registry.by_url, _registry.open
        _registry.by_url, _registry.open = {}, open_engine
    try:
        yield
    finally:
        with _registry.guard.lock:
            by_url, _registry.open = before
            still_open = _registry.in_use
            _registry.by_url = {url: each for url, each in by_url.items() if each in still_open}


def registering() -> AbstractContextManager[object]:
    """Keep other threads from opening or leaving an engine, for a step that does more than that."""
    return _registry.guard.lock

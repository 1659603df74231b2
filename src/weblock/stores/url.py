"""Engines by URL: the scheme names the module that opens it."""

from __future__ import annotations

import importlib
import os
import pkgutil
import re
import threading
from collections.abc import Iterator, Sequence
from types import ModuleType

from .. import stores
from .._core.ports import Engine
from ..errors import ConfigurationError

DEFAULT = "file://"

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")


class _OpenEngines:
    """The engines of this process, by URL."""

    def __init__(self) -> None:
        self.guard = threading.Lock()
        self.by_url: dict[str, Engine] = {}

    def after_fork(self) -> None:
        self.guard = threading.Lock()


_engines = _OpenEngines()
os.register_at_fork(after_in_child=_engines.after_fork)


def engine_for(url: str | Sequence[str]) -> Engine:
    """The engine that ``url`` names; everybody in this process who asks gets the same one.

    Several URLs name a quorum.

    Raises ``ConfigurationError`` for a URL that no engine knows, or that its engine refuses.
    """
    name = "\n".join(map(str, url)) if isinstance(url, list | tuple) else str(url)
    with _engines.guard:
        if name not in _engines.by_url:
            _engines.by_url[name] = _open(url)
        return _engines.by_url[name]


def _open(url: str | Sequence[str]) -> Engine:
    engine: Engine
    if isinstance(url, list | tuple):
        engine = importlib.import_module(f"{stores.__name__}.quorum").open_quorum(url)
    else:
        engine = _engine_module(_scheme_of(url)).open_engine(url)
    return engine


def engine_of(client: object, **options: object) -> Engine:
    """An engine on the server that a ready client of its driver talks to.

    Raises ``ConfigurationError`` for a client that no engine knows, or an option it does not have.
    """
    for module in _modules(""):
        adopt = getattr(module, "adopt", None)
        if adopt and (engine := adopt(client, **options)):
            adopted: Engine = engine
            return adopted
    raise ConfigurationError(
        f"no engine knows what to do with a {type(client).__module__}.{type(client).__qualname__}:"
        " give a redis-py client, or a URL"
    )


def forget(engine: Engine) -> None:
    """Has the next one who asks for the engine's URL get a new one."""
    with _engines.guard:
        for url in [url for url, each in _engines.by_url.items() if each is engine]:
            del _engines.by_url[url]


def _scheme_of(url: object) -> str:
    scheme = _SCHEME.match(url) if isinstance(url, str) else None
    if not scheme:
        raise ConfigurationError(
            f"an engine URL looks like 'redis://localhost' or 'file:///var/lib/app/locks';"
            f" this one has no scheme: {shown(url)}"
        )
    return scheme.group(1).lower()


def _engine_module(scheme: str) -> ModuleType:
    known: list[str] = []
    for module in _modules(scheme):
        schemes = getattr(module, "SCHEMES", ())
        if scheme in schemes:
            return module
        known.extend(f"{each}://" for each in schemes)
    raise ConfigurationError(
        f"no engine is called {scheme!r:.40}: the URL may start with {', '.join(sorted(known))}"
    )


def _modules(scheme: str) -> Iterator[ModuleType]:
    """The modules beside this one, that of the scheme's own name first."""
    names = [info.name for info in pkgutil.iter_modules(stores.__path__)]
    for name in sorted(names, key=lambda name: name != scheme):
        yield importlib.import_module(f"{stores.__name__}.{name}")


def without_secrets(url: str) -> str:
    """A URL without what stands before an ``@``, which may be a password."""
    scheme, mark, rest = url.partition("://")
    return f"{scheme}{mark}{rest.rpartition('@')[2]}"


def shown(url: object) -> str:
    """A value that should have been a URL, as it may stand in a message."""
    return repr(str(url).rpartition("@")[2][:80])

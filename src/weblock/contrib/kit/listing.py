"""What an application locks, for ``weblock check``.

Each adapter names one function in the entry points ``weblock.adapters``. It is called with an application, and with each
that this one wraps, and yields a ``Locked`` for each place that locks, and a ``ConfigurationError`` for each thing
that cannot work. It is asked about one request, too: then it yields what serves that request.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self
from urllib.parse import unquote

from ..._api import BaseLocks
from ...errors import ConfigurationError
from ...keys import KeyTemplate
from .guarding import LEASE_GUARD
from .spec import KeyFunction, name_of


class Asked(NamedTuple):
    """A request that is asked about: its method, ``WEBSOCKET`` for a websocket, and its decoded path."""

    method: str
    path: str

    @classmethod
    def of(cls, method: str, target: str) -> Self:
        """Return the request to a path as a client sends it. Raises ``ConfigurationError``."""
        if not target.startswith("/"):
            raise ConfigurationError(f'{target!r:.80} is not a path: it must start with "/"')
        return cls(method.upper(), unquote(target.partition("?")[0]))


@dataclass(frozen=True)
class Locked:
    """A route, a rule or a task, and what it locks."""

    what: str
    """The place that locks, such as ``POST /items/{item_id}``."""
    keys: Sequence[KeyTemplate | KeyFunction | str] = ()
    """Empty for what serves a request without a lock."""
    options: Mapping[str, object] = field(default_factory=dict)
    """Those that this lock has of its own."""
    locks: BaseLocks | None = None
    """``None`` if the application has none yet."""
    guard: str = LEASE_GUARD
    order: str = ""
    """What comes before the lock and after it, authentication above all."""

    def facts(self) -> dict[str, Any]:
        """Return what ``--json`` prints."""
        return {
            "what": self.what,
            "keys": list(map(_text_of, self.keys)),
            "options": {name: _plain(value) for name, value in self.options.items()},
            "guard": self.guard,
            "engine": self.locks and self.locks.engine,
            "scope": self.locks and self.locks.scope,
            "order": self.order,
        }

    def __str__(self) -> str:
        if not self.keys:
            return f"{self.what}\n  locks nothing"
        facts = self.facts()
        options = (f"{name}={value!r}" for name, value in facts["options"].items())
        lines = {
            "keys": ", ".join(facts["keys"]),
            "options": ", ".join(options),
            "guard": self.guard,
            "engine": f"{facts['engine']} (scope: {facts['scope']})" if self.locks else "",
            "order": self.order,
        }
        told = [f"  {f'{name}:':<9}{text}" for name, text in lines.items() if text]
        return "\n".join([self.what, *told])


def _text_of(key: KeyTemplate | KeyFunction | str) -> str:
    if isinstance(key, KeyTemplate):
        return key.text
    return key if isinstance(key, str) else name_of(key)


def _plain(value: object) -> object:
    if callable(value):
        return name_of(value)
    return value if value is None or isinstance(value, str | int | float | list) else str(value)

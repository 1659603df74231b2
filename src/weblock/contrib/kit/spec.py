"""What to lock: the keys, the options and the guard that a decorator, a dependency, a rule and a task take."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, Self

from ..._options import HoldOptions, Options
from ...keys import CheckedKey, KeyTemplate, in_order
from .guarding import GuardKind, refuse_guard
from .values import KeyFunction, keys_made_by


@dataclass(frozen=True, repr=False)
class LockSpec:
    """A description of what to lock: equal for equal arguments, and hashable.

    An adapter whose users say more derives from it, with a field and a default for each thing more.
    """

    keys: tuple[KeyTemplate | KeyFunction, ...]
    """Templates, which a request fills in, and functions of the application, which make keys of it."""
    _said: tuple[tuple[str, object], ...]
    guard: GuardKind | None
    """``None`` is what the application's settings say."""
    options: HoldOptions = field(compare=False)

    @classmethod
    def of(
        cls,
        keys: Iterable[str | KeyTemplate | KeyFunction],
        options: HoldOptions,
        guard: GuardKind | None = None,
        **more: Any,
    ) -> Self:
        """Return the spec of what a user has written.

        A ready template can name what no request has. Raises ``ConfigurationError`` for
        a template, an option or a guard that cannot work, and ``TypeError`` if there is no key or an
        option does not exist: where it is written, not at the first request.
        """
        keys = tuple(keys)
        if not keys:
            raise TypeError('name at least one key: lock("create_item")')
        Options().of_call(options)
        refuse_guard(guard, options)
        said = tuple(sorted(options.items()))
        return cls(tuple(map(_parsed, keys)), said, guard, options, **more)

    @property
    def templates(self) -> tuple[KeyTemplate, ...]:
        """The templates among its keys."""
        return tuple(key for key in self.keys if isinstance(key, KeyTemplate))

    @property
    def functions(self) -> tuple[KeyFunction, ...]:
        """The functions among its keys."""
        return tuple(key for key in self.keys if not isinstance(key, KeyTemplate))

    def made_of(
        self,
        values_for: Callable[[KeyTemplate], Mapping[str, object]],
        call: Callable[[KeyFunction], object],
    ) -> tuple[CheckedKey, ...]:
        """Return the keys of one request, in the order in which every caller acquires them.

        ``values_for`` returns what the request has for a template, and ``call`` what a key function
        returns for it. Raises ``InvalidKey`` for a key that cannot be made, and ``ConfigurationError``
        for a function that returned something else than strings.
        """
        found: list[CheckedKey] = []
        for key in self.keys:
            if isinstance(key, KeyTemplate):
                found.append(key.fill(values_for(key)))
            else:
                found += keys_made_by(key, call(key))
        return in_order(found)

    def __repr__(self) -> str:
        said = dict(self._said)
        for each in fields(self):
            if each.default is not MISSING and getattr(self, each.name) != each.default:
                said[each.name] = getattr(self, each.name)
        if self.guard:
            said["guard"] = self.guard
        keys = [
            repr(key.text) if isinstance(key, KeyTemplate) else name_of(key) for key in self.keys
        ]
        return f"lock({', '.join([*keys, *(f'{name}={_shown(value)}' for name, value in said.items())])})"


def _parsed(key: str | KeyTemplate | KeyFunction) -> KeyTemplate | KeyFunction:
    if not isinstance(key, str):
        return key
    template = KeyTemplate.parse(key)
    template.in_request()
    return template


def _shown(value: object) -> str:
    return name_of(value) if callable(value) else repr(value)


def name_of(function: object) -> str:
    """Return the name of a function of the application, for messages."""
    return str(getattr(function, "__qualname__", None) or repr(function))

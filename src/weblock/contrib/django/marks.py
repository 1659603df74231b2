"""The mark by which the middleware knows a decorated view, before it runs."""

from __future__ import annotations

import dis
import functools
import inspect
import itertools
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any, Final

from .description import Lock

_MARK: Final = "weblock_locks"

_HANDLERS: Final = frozenset(
    {"get", "post", "put", "patch", "delete", "head", "options", "trace"}
    # What those of Django REST framework call.
    | {"list", "create", "retrieve", "update", "partial_update", "destroy"}
)
"""Methods of views that serve a whole request, and may call one another to do it."""


def mark(view: Callable[..., Any], lock: Lock) -> None:
    """Notes that ``view`` runs under ``lock``.

    ``functools.wraps`` carries the mark through other decorators, and ``as_view`` from ``dispatch``
    to the view.
    """
    setattr(view, _MARK, (lock, *marks_of(view)))


def marks_of(view: object) -> tuple[Lock, ...]:
    """What ``view`` itself is marked with: the outermost decorator's lock comes first."""
    found: tuple[Lock, ...] = getattr(view, _MARK, ())
    return found


def locks_of(view: Callable[..., Any], method: str | None) -> tuple[Lock, ...]:
    """What a request to ``view`` holds: its marks, and those of what it calls to serve ``method``."""
    found: dict[Lock, None] = {}
    for each in _called(view):
        found.update(dict.fromkeys(marks_of(each)))
        cls = getattr(each, "view_class", None) or getattr(each, "cls", None)
        if cls is not None:
            name = _handler(cls, getattr(each, "actions", None), (method or "get").lower())
            found.update(dict.fromkeys(_marks_of_handler(cls, name)))
    return tuple(found)


def _called(view: Any) -> Iterator[object]:
    """The view, what a ``partial`` is of, and the method that calling an object calls."""
    yield view
    while isinstance(view, functools.partial):
        view = view.func
        yield view
    if not inspect.isroutine(view):
        yield type(view).__call__


def _handler(cls: type, actions: dict[str, str] | None, method: str) -> str:
    """The name of the method, or of the action of a viewset, that serves requests of ``method``."""
    for each in (method, "get") if method == "head" else (method,):
        name = actions.get(each, "") if actions else each
        if hasattr(cls, name):
            return name
    return ""


@functools.lru_cache(maxsize=1024)
def _marks_of_handler(cls: type, name: str) -> tuple[Lock, ...]:
    """The marks of a method, and of those that it passes the request on to.

    Its transaction has begun when it calls them, so their locks have to be there before: those of
    ``update``, which ``partial_update`` calls, and of the method of that name that it overrides.
    """
    found: dict[Lock, None] = {}
    pending, seen = [(name, 0)], set()
    while pending:
        name, level = each = pending.pop()
        bases = [base for base in cls.__mro__ if name in vars(base)][level:]
        if each in seen or not bases:
            continue
        seen.add(each)
        function = vars(bases[0])[name]
        found.update(dict.fromkeys(marks_of(function)))
        code = getattr(inspect.unwrap(function), "__code__", None)
        if isinstance(code, CodeType):
            pending += [(other, 0) for other in sorted(_HANDLERS & _called_on_self(code))]
            if {"super", name} <= {*code.co_names}:
                pending.append((name, level + 1))
    return tuple(found)


def _called_on_self(code: CodeType) -> set[str]:
    """The ``x`` of each ``self.x`` in a method's code."""
    self = code.co_varnames[:1]
    return {
        after.argval
        for before, after in itertools.pairwise(dis.get_instructions(code))
        if before.opname.startswith(("LOAD_FAST", "LOAD_DEREF"))
        # Python 3.13 loads two at once.
        and self == (before.argval[-1:] if isinstance(before.argval, tuple) else (before.argval,))
        and after.opname in ("LOAD_ATTR", "LOAD_METHOD")
    }

"""The mark by which the middleware knows a decorated view, before it runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from .description import Lock

_MARK: Final = "weblock_locks"


def mark(view: Callable[..., Any], lock: Lock) -> None:
    """Notes that ``view`` runs under ``lock``.

    ``functools.wraps`` carries the mark through other decorators, and ``as_view`` from ``dispatch``
    to the view.
    """
    setattr(view, _MARK, (lock, *getattr(view, _MARK, ())))


def locks_of(view: Callable[..., Any], method: str | None) -> tuple[Lock, ...]:
    """What ``view`` is marked with, and the method of its class that serves ``method``."""
    handler = _handler(view, (method or "get").lower())
    return tuple(dict.fromkeys((*getattr(view, _MARK, ()), *getattr(handler, _MARK, ()))))


def _handler(view: Any, method: str) -> object:
    """The method of a class-based view, or the action of a viewset of Django REST framework."""
    cls = getattr(view, "view_class", None) or getattr(view, "cls", None)
    actions = getattr(view, "actions", None)
    for name in (method, "get") if method == "head" else (method,):
        found = getattr(cls, actions.get(name, "") if actions else name, None)
        if found is not None:
            return found
    return None

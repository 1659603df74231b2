"""The keys that a call of a task's function has."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from ...errors import ConfigurationError
from ...keys import CheckedKey, KeyTemplate, in_order
from ..kit.values import KeyFunction, keys_made_by, wanted_by

LockOption = str | KeyFunction | Sequence[str | KeyFunction] | None
KeysOfCall = Callable[[tuple[Any, ...], dict[str, Any]], tuple[CheckedKey, ...]]
"""Returns the keys for positional and keyword arguments, in the order in which they are acquired."""


def keys_of_calls(lock: LockOption, run: Callable[..., Any]) -> KeysOfCall:
    """Return what makes the keys of calls of ``run``. Raises ``ConfigurationError`` for an option that cannot work."""
    wanted = lock if isinstance(lock, list | tuple) else [lock]
    if not wanted:
        raise ConfigurationError("lock=[] names no key: lock=None does not lock")
    makers: list[Callable[..., Sequence[str]]] = []
    for each in wanted:
        if isinstance(each, str):
            makers.append(_of_template(KeyTemplate.parse(each), run))
        elif callable(each):
            makers.append(_of_function(each, inspect.signature(run)))
        else:
            raise ConfigurationError(
                f"lock={lock!r:.80} must be a key, a function that returns one, or several in a list"
            )
    return lambda args, kwargs: in_order([key for make in makers for key in make(args, kwargs)])


def _of_template(template: KeyTemplate, run: Callable[..., Any]) -> Callable[..., Sequence[str]]:
    key_of = template.for_call_of(run)
    return lambda args, kwargs: [key_of(args, kwargs)]


def _of_function(
    function: KeyFunction, signature: inspect.Signature
) -> Callable[..., Sequence[str]]:
    # A class has made a method of a function that was given as an option. One that takes ``self`` is one.
    plain = getattr(function, "__func__", function)
    if next(iter(inspect.signature(plain).parameters), "") != "self":
        function = plain

    def keys_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Sequence[str]:
        call = signature.bind(*args, **kwargs)
        call.apply_defaults()
        return keys_made_by(function, function(**wanted_by(function, call.arguments)))

    return keys_of

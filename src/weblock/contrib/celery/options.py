"""What a task says about its lock."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, Literal, cast, get_args

from ..._options import HoldOptions, Options, seconds
from ...errors import ConfigurationError
from ...keys import CheckedKey, KeyTemplate, in_order
from ..request_values import keys_made_by, wanted_by

if TYPE_CHECKING:
    from .task import LockedTask

OnBusy = Literal["wait", "skip", "retry"]
"""What a task does if its key is busy."""

KeyFunction = Callable[..., Any]
"""Returns a key, or several; it is called with those arguments of the task that it names."""

NAMES: Final = tuple(HoldOptions.__annotations__)


def hold_options(task: LockedTask | type[LockedTask]) -> HoldOptions:
    """Return the options with which a task holds its keys; unless it says so, only ``on_busy="wait"`` waits."""
    options: dict[str, Any] = {name: getattr(task, name) for name in NAMES if hasattr(task, name)}
    if task.lock_shared is not None:
        options["shared"] = task.lock_shared
    if task.on_busy != "wait":
        options.setdefault("wait", 0)
    return cast("HoldOptions", options)


def check(task: type[LockedTask], run: Callable[..., Any]) -> None:
    """Raise ``ConfigurationError`` or ``TypeError`` for options that cannot work.

    ``run`` is called with the arguments of the task.
    """
    if task.on_busy not in get_args(OnBusy):
        raise ConfigurationError(
            f"on_busy={task.on_busy!r:.80} must be 'wait', 'skip' or 'retry' (task {task.__name__})"
        )
    if inspect.iscoroutinefunction(run):
        raise TypeError(
            f"{task.__name__} is async: its coroutine would run after the lock is released"
        )
    if inspect.isgeneratorfunction(run) or inspect.isasyncgenfunction(run):
        raise TypeError(
            f"{task.__name__} is a generator, which would run after the lock is released, if at all"
        )
    for name in ("busy_countdown", "at_least"):
        if (value := getattr(task, name)) is not None:
            seconds(name, value)
    Options().of_call(hold_options(task))
    for _ in _keys(task, run):
        pass


class Keys:
    """Makes the keys of the calls of one task's function."""

    def __init__(self, task: LockedTask, run: Callable[..., Any]) -> None:
        self._task = task
        self._run = run
        self._lock: object = None
        self._made: tuple[_KeyOfCall, ...] = ()

    def of_call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[CheckedKey, ...]:
        """Return the keys of one call, in the order in which they are acquired."""
        if self._lock is not self._task.lock:  # The settings may annotate it later.
            self._made = tuple(_keys(self._task, self._run))
            self._lock = self._task.lock
        return in_order([key for make in self._made for key in make(args, kwargs)])


_KeyOfCall = Callable[[tuple[Any, ...], dict[str, Any]], list[CheckedKey]]


def _keys(task: LockedTask | type[LockedTask], run: Callable[..., Any]) -> Iterator[_KeyOfCall]:
    lock = task.lock
    wanted = lock if isinstance(lock, list | tuple) else [lock]
    if not wanted:
        raise ConfigurationError("lock=[] names no key: lock=None does not lock")
    for each in wanted:
        if isinstance(each, str):
            yield _of_template(each, run)
        elif callable(each):
            yield _of_function(_plain(each), run)
        else:
            raise ConfigurationError(
                f"lock={lock!r:.80} must be a key, a function that returns one, or several in a list"
            )


def _of_template(text: str, run: Callable[..., Any]) -> _KeyOfCall:
    key_of = KeyTemplate.parse(text).for_call_of(run)
    return lambda args, kwargs: [cast("CheckedKey", key_of(args, kwargs))]


def _of_function(function: KeyFunction, run: Callable[..., Any]) -> _KeyOfCall:
    signature = inspect.signature(run)

    def keys_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[CheckedKey]:
        call = signature.bind(*args, **kwargs)
        call.apply_defaults()
        return keys_made_by(function, function(**wanted_by(function, call.arguments)))

    return keys_of


def _plain(function: KeyFunction) -> KeyFunction:
    """Return a function that was given as an option, of which the class has made a method.

    One that is written as a method takes ``self``, and stays one.
    """
    plain = getattr(function, "__func__", function)
    return function if next(iter(inspect.signature(plain).parameters), "") == "self" else plain

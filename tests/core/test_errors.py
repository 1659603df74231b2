"""The errors: their tree, their facts, and that they travel."""

from __future__ import annotations

import copy
import json
import pickle
import traceback
from collections.abc import Iterator

import pytest

import weblock
from weblock import (
    AlreadyHeld,
    ConfigurationError,
    EngineRecovering,
    EngineUnavailable,
    InvalidKey,
    LeaseLost,
    LockTimeout,
    WeblockError,
)
from weblock.contrib.celery import AlreadyQueued
from weblock.contrib.kit.guarding import FenceLocked, StaleFence
from weblock.errors import (
    AnswerNotStored,
    AnswersUnavailable,
    BodyTimeout,
    BodyTooLong,
    CallerUnknown,
    IdempotencyKeyInvalid,
    IdempotencyKeyReused,
    StrangePath,
    TooManyAnswers,
)

ERRORS = [
    LockTimeout("key", wait=0),
    LockTimeout("key", wait=2.5, retry_after=7.0, place=2),
    LockTimeout("key", wait=None, waiters=9),
    LeaseLost("key", fence=7, reason="taken"),
    LeaseLost("key", fence=7, reason="forked"),
    EngineUnavailable("redis://localhost", "connection refused"),
    EngineRecovering("redis://localhost", "it was started just now", retry_after=7.25),
    ConfigurationError("ttl=-1 must be ..."),
    ConfigurationError("the Locks is closed", code="closed"),
    InvalidKey("the key is empty"),
    StrangePath("path '/a//b' ..."),
    AlreadyHeld("key"),
    AlreadyHeld("key", waits=True),
    BodyTimeout(2.5),
    BodyTooLong(65536),
    CallerUnknown("user_of"),
    IdempotencyKeyInvalid("Idempotency-Key", "it is too long"),
    IdempotencyKeyInvalid("Idempotency-Key", "it is missing", missing=True),
    IdempotencyKeyReused("the key was used before"),
    TooManyAnswers(9, retry_after=2.5),
    AnswersUnavailable("the database is down"),
    AnswerNotStored("the response is a stream"),
    AlreadyQueued("key", task_id="7", remaining=2.5),
    StaleFence("key", fence=7, newest=9),
    FenceLocked("key", wait=2.5),
]


class OutOfStock(WeblockError):
    """An error of an application that has nothing to tell its base class."""

    def __init__(self, sku: str) -> None:
        self.sku = sku


class Busier(LockTimeout):
    """One whose base class is one of Python's own errors, too."""

    def __init__(self, sku: str) -> None:
        self.sku = sku


NAMES = [f"{number}-{type(error).__name__}" for number, error in enumerate(ERRORS)]


@pytest.mark.parametrize("error", ERRORS, ids=NAMES)
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_every_error_pickles(error: WeblockError, protocol: int) -> None:
    """An error that crossed to another process has its type, its message and its facts."""
    error.add_note("a note")
    arrived = pickle.loads(pickle.dumps(error, protocol))
    assert type(arrived) is type(error)
    assert str(arrived) == str(error)
    assert vars(arrived) == vars(error)


@pytest.mark.parametrize("error", ERRORS, ids=NAMES)
def test_every_error_can_be_copied(error: WeblockError) -> None:
    """A copy has the same facts."""
    assert vars(copy.copy(error)) == vars(error)


def test_these_are_all_public_errors() -> None:
    """A new error is tried here, too."""

    def below(error: type[WeblockError]) -> Iterator[type[WeblockError]]:
        for each in error.__subclasses__():
            yield each
            yield from below(each)

    public = ("weblock.errors", "weblock.contrib.")
    found = {each for each in below(WeblockError) if each.__module__.startswith(public)}
    assert found == {type(error) for error in ERRORS}


def test_a_subclass_has_its_own_arguments() -> None:
    """The error of an application has a text and travels, whether it calls ``__init__`` or not."""
    error = OutOfStock("socks")
    assert (str(error), repr(error)) == ("socks [weblock.error]", "OutOfStock('socks')")
    assert error.for_operators == str(error)
    assert vars(pickle.loads(pickle.dumps(error))) == vars(error)
    assert str(OutOfStock(sku="socks")) == " [weblock.error]"
    assert str(Busier("key")).endswith("[weblock.lock_timeout]")


@pytest.mark.parametrize(
    "error",
    [*ERRORS, LockTimeout("key", wait=9, holder="web-1:4242")],
    ids=repr,
)
def test_every_error_outlives_json(error: WeblockError) -> None:
    """Celery keeps the class and the arguments of an error: its caller catches one of the same kind."""
    arrived = type(error)(*json.loads(json.dumps(error.args)))
    facts = {name: value for name, value in vars(error).items() if name != "__notes__"}
    assert facts.items() <= vars(arrived).items()


@pytest.mark.parametrize(
    ("error", "builtin"),
    [
        (LockTimeout, TimeoutError),
        (EngineUnavailable, ConnectionError),
        (EngineRecovering, EngineUnavailable),
        (ConfigurationError, ValueError),
        (AlreadyHeld, RuntimeError),
        (InvalidKey, ConfigurationError),
    ],
)
def test_what_else_an_error_is(error: type[Exception], builtin: type[Exception]) -> None:
    """Code that knows only Python's own errors catches the right ones."""
    assert issubclass(error, builtin)


def test_busy_down_and_lost_are_three_errors() -> None:
    """None of the three can be caught as one of the others."""
    three = [LockTimeout, EngineUnavailable, LeaseLost]
    for one in three:
        assert [other for other in three if issubclass(one, other)] == [one]


def test_all_are_weblock_errors() -> None:
    """Every public error has the one base."""
    public = [getattr(weblock, name) for name in weblock.__all__]
    errors = [each for each in public if isinstance(each, type) and issubclass(each, Exception)]
    assert len(errors) == 8
    assert all(issubclass(each, WeblockError) for each in errors)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (LockTimeout("k", wait=0), "wait=0 does not wait: retry later, or raise wait="),
        (LockTimeout("k", wait=2.5), "not free within wait=2.5 s: retry"),
        (LockTimeout("k", wait=None, waiters=9), "9 others are waiting already"),
        (LockTimeout("k", wait=None, waiters=1), "1 other is waiting already"),
        (LockTimeout("k", wait=2, place=3), "with 3 others ahead in the queue"),
        (LockTimeout("k", wait=2, place=1), "with 1 other ahead in the queue"),
        (LockTimeout("k", wait=2, attempts=3), "busy at each of 3 attempts"),
        (LockTimeout("k", wait=2, attempts=1), "busy at the only attempt"),
        (LeaseLost("k", fence=7, reason="expired"), "fence 7.*not renewed in time"),
        (LeaseLost("k", fence=7, reason="max_hold"), "longer than max_hold"),
        (LeaseLost("k", fence=7, reason="taken"), "no longer knows it"),
        (LeaseLost("k", fence=7, reason="forked"), "parent of this process"),
        (EngineUnavailable("redis://h", "no route"), "redis://h is unavailable: no route"),
        (AlreadyHeld("k"), "'k' is already held by this task, thread or request"),
        (AlreadyHeld("k", inherited=True), r"context=contextvars\.Context\(\)"),
        (
            AlreadyHeld("k", waits=True),
            "'k' has another task of this event loop ahead in its queue.*to_thread",
        ),
    ],
)
def test_a_message_says_what_happened(error: WeblockError, words: str) -> None:
    """The message tells what a reader of a log needs."""
    with pytest.raises(type(error), match=words):
        raise error


def test_a_hostile_key_in_a_message() -> None:
    """A key is shown quoted: it can break no line of a log."""
    assert "\n" not in str(LockTimeout("a\nb", wait=0, holder="c\nd"))
    assert "\u2028" not in str(AlreadyHeld("a\u2028b"))


def test_what_names_the_holder_is_for_operators() -> None:
    """A server may send the message to its client: the holder's host and process are in a note."""
    error = LockTimeout("k", wait=2, holder="web-1:4242")
    arrived = pickle.loads(pickle.dumps(error))
    text = "lock 'k' was not acquired: it was not free within wait=2 s: retry later, or raise wait="
    code = "[weblock.lock_timeout]"
    assert str(arrived) == f"{text} {code}"
    assert arrived.for_operators == f"{text}; lock 'k' is held by 'web-1:4242' {code}"
    assert "is held by 'web-1:4242'" in "".join(traceback.format_exception(arrived))

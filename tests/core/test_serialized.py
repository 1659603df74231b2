"""What ``serialized``, ``run``, ``once`` and ``cached`` refuse, because it would run without the lock."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from weblock import AsyncLocks, ConfigurationError, Locks

APIS = [Locks, AsyncLocks]


def rows() -> Iterator[int]:
    yield 1


async def rows_of_asyncio() -> AsyncIterator[int]:
    yield 1


@pytest.fixture(params=APIS)
def locks(request: pytest.FixtureRequest) -> Any:
    return request.param.from_url("memory://")


@pytest.mark.parametrize("function", [rows, rows_of_asyncio])
@pytest.mark.parametrize("decorator", ["serialized", "cached"])
def test_a_generator_is_refused(locks: Any, decorator: str, function: Any) -> None:
    """Its body runs when it is iterated over, after the decorator has released the key."""
    options = {"cache": {}, "expiry": 1} if decorator == "cached" else {}
    with pytest.raises(TypeError, match=r"is a generator.* no longer held"):
        getattr(locks, decorator)("k", **options)(function)


@pytest.mark.parametrize("name", ["run", "once"])
def test_a_generator_is_no_work(name: str) -> None:
    """Its call only makes it."""
    with Locks.from_url("memory://") as locks, pytest.raises(TypeError, match="is a generator"):
        getattr(locks, name)("k", rows)


def test_a_class_is_refused() -> None:
    """A function in its place would be no class any more, and lock ``__init__`` alone."""
    with (
        Locks.from_url("memory://") as locks,
        pytest.raises(TypeError, match="is a class: decorate"),
    ):
        locks.serialized("k")(dict)


def test_a_decorator_without_its_key_says_so(locks: Any) -> None:
    """``@locks.serialized`` without parentheses takes the function for the key."""
    with pytest.raises(ConfigurationError, match=r'as in @locks.serialized\("create_item"\)'):
        locks.serialized(rows)

"""The decorator."""

from __future__ import annotations

import pytest

from weblock import AlreadyHeld, Locks

pytestmark = pytest.mark.promise("locks")


@pytest.mark.of_core
def test_calls_do_not_overlap(locks, api, one, probe, waiting) -> None:
    """Inside a decorated function its key is held, and after it, it is not."""
    assert one.do(api.serialize(locks, "key", lambda: _held_here(probe, "key")))
    assert waiting("key") is None


@pytest.mark.of_core
def test_the_key_is_filled_in_from_the_arguments(locks, api, one, probe) -> None:
    """Positional, named and default arguments make the key, encoded."""

    def look(item: object, shop: str = "main", *, expected: str) -> bool:
        return _held_here(probe, expected)

    decorated = api.serialize(locks, "{shop}:{item}", look)
    assert one.do(decorated, 7, expected="main:7")
    assert one.do(decorated, item="a:b", shop="x", expected="x:a%3Ab")


def _held_here(probe: Locks, key: str) -> bool:
    """Whether the very flow of control that asks holds the key."""
    try:
        probe.acquire(key).release()
    except AlreadyHeld:
        return True
    return False

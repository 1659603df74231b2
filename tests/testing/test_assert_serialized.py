from __future__ import annotations

import re

import pytest

from weblock.testing import assert_serialized, assert_serialized_async

from . import shop

HERE = f"{__package__}.shop"
MAKE = f"{HERE}.make_item"
MAKE_ASYNC = f"{HERE}.make_item_async"


def test_locked_calls_pass() -> None:
    """Calls that a lock serializes pass, and what they returned is at hand."""
    made = assert_serialized(shop.locked, inside=MAKE, times=4)
    assert len(set(made)) == 4


def test_unlocked_calls_fail_with_a_report() -> None:
    """Calls without a lock fail, and the report says how many overlapped, which, and when."""
    with pytest.raises(AssertionError) as caught:
        assert_serialized(shop.unlocked, inside=MAKE, times=3, pause=10)
    lines = str(caught.value).splitlines()
    assert re.fullmatch(
        r"3 concurrent calls were not serialized: [23] were inside at once\.", lines[0]
    )
    assert all(
        re.match(r" +\d \[ *#+ *\] \d\.\d{3} to \d\.\d{3} s, call \d", each) for each in lines[1:4]
    )
    assert lines[4].startswith("overlapping: 1 with 2")
    assert lines[5].startswith("outcomes: 1 x ")


def test_as_many_as_a_lock_lets_in_pass() -> None:
    """With ``limit=2``, a lock that lets two in passes, and one that lets three in does not."""
    made = assert_serialized(shop.two_at_once, inside=MAKE, limit=2, pause=0.02)
    assert len(set(made)) == 6
    with pytest.raises(AssertionError, match=r"not serialized: 2 were inside at once\."):
        assert_serialized(shop.two_at_once, inside=MAKE, pause=10)
    with pytest.raises(
        AssertionError, match=r"not serialized: 3 were inside at once, and limit=2 allows 2\."
    ):
        assert_serialized(shop.unlocked, inside=MAKE, limit=2, times=3, pause=10)


@pytest.mark.parametrize(("times", "limit"), [(2, 2), (None, 0)])
def test_calls_that_cannot_be_too_many_are_refused(times: int | None, limit: int) -> None:
    """As many calls as are allowed at once prove nothing, and none at once are no limit."""
    with pytest.raises(ValueError, match=f"limit={limit}"):
        assert_serialized(pytest.fail, inside=MAKE, times=times, limit=limit)


async def test_tasks_that_a_limit_lets_in_pass() -> None:
    """Tasks of one loop, of which a lock lets two in at once."""
    made = await assert_serialized_async(
        shop.two_at_once_async, inside=MAKE_ASYNC, limit=2, pause=0.02
    )
    assert len(set(made)) == 6


async def test_locked_tasks_pass() -> None:
    """The same for tasks of one loop, with an async lock."""
    made = await assert_serialized_async(shop.locked_async, inside=MAKE_ASYNC, times=4)
    assert len(set(made)) == 4


async def test_unlocked_tasks_fail() -> None:
    """The same for tasks of one loop, without a lock."""
    with pytest.raises(AssertionError, match="not serialized"):
        await assert_serialized_async(shop.unlocked_async, inside=MAKE_ASYNC, pause=10)


async def test_one_thread_proves_nothing() -> None:
    """Blocking code that never had a chance to overlap is no proof, and is said to be none."""
    with pytest.raises(AssertionError, match="all calls ran in one thread"):
        await assert_serialized_async(shop.blocks_its_loop, inside=MAKE, times=2)


def test_nobody_inside_proves_nothing() -> None:
    """Calls that never get inside are no proof, and what they got instead is said."""
    with pytest.raises(AssertionError, match=r"0 of 2 .* proves nothing.* 2 x 'other'"):
        assert_serialized(lambda: "other", inside=MAKE, times=2)


def test_errors_of_calls_are_raised() -> None:
    """A call that fails is no success, even though none overlapped."""
    with pytest.raises(BaseExceptionGroup, match="2 of 2 calls failed") as caught:
        assert_serialized(shop.fails, inside=MAKE, times=2)
    assert caught.group_contains(OSError, match="printer")


@pytest.mark.parametrize("method", ["make", "make_static", "make_class"])
def test_methods_are_watched(method: str) -> None:
    """Methods of every kind are watched, and are what they were when the block ends."""
    before = vars(shop.Maker)[method]
    with pytest.raises(AssertionError, match="not serialized"):
        assert_serialized(
            lambda: str(getattr(shop.Maker(), method)()),
            inside=f"{HERE}.Maker.{method}",
            pause=10,
        )
    assert vars(shop.Maker)[method] is before


@pytest.mark.parametrize(
    "path", ["make_item", f"{HERE}.nothing", "no.such.module", f"{HERE}.ENGINE"]
)
def test_what_is_no_function_is_named(path: str) -> None:
    """A path that names no function is refused by name, before anything is called."""
    with pytest.raises(LookupError, match=re.escape(path)):
        assert_serialized(pytest.fail, inside=path)

"""A key that looks like a template: its ``f`` was forgotten, and all items share one lock."""

import itertools

import pytest

from weblock import AsyncLocks, Key, Locks, _api
from weblock.contrib.kit.spec import keys_made_by

numbers = itertools.count()


@pytest.fixture(autouse=True)
def unwarned(monkeypatch):
    monkeypatch.setattr(_api, "_warned_of", set())


@pytest.fixture
def url():
    return f"memory://unfilled-{next(numbers)}"


async def hold(api, url, key):
    if api is Locks:
        with Locks.from_url(url) as locks, locks.hold(key):
            pass
    else:
        async with AsyncLocks.from_url(url) as locks, locks.hold(key):
            pass


both = pytest.mark.parametrize("api", [Locks, AsyncLocks])


@both
async def test_a_template_that_nobody_fills_in_is_warned_of(api, url, caplog):
    """``hold("item:{item_id}")`` names the remedy, once, and locks what it was given."""
    for _ in range(3):
        await hold(api, url, "item:{item_id}")
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert "{item_id} was not substituted" in record.getMessage()
    assert "Write f'item:{item_id}'" in record.getMessage()


@both
@pytest.mark.parametrize(
    "key", ["item:7", "{}", "{7}", "a{b", "{'a': 1}", "{a b}", Key("item:{name}", name="{name}")]
)
async def test_other_keys_are_not_warned_of(api, key, url, caplog):
    """Braces that are no placeholder are a user's own, and so is what a template was filled in with."""
    await hold(api, url, key)
    assert not caplog.records


async def test_strangers_keys_do_not_fill_the_log(url, caplog):
    """Only so many are told of: a key may be made of what somebody has sent."""
    for number in range(50):
        await hold(Locks, url, f"file:{{name_{number}}}")
    assert len(caplog.records) == _api._MOST_WARNINGS
    assert len(_api._warned_of) == _api._MOST_WARNINGS


def test_decorators_fill_in_their_templates(url, caplog):
    """``serialized("item:{item_id}")`` is a template, which its calls fill in."""
    with Locks.from_url(url) as locks:
        locks.serialized("item:{item_id}")(lambda item_id: None)(7)
    assert not caplog.records


def test_a_key_function_that_fills_in_nothing_is_warned_of(caplog):
    """``lambda request: "cart:{user.id}"`` names one lock for all, in every adapter: as ``hold`` does."""
    for _ in range(3):
        keys_made_by(print, ["cart:7", "cart:{user.id}", Key("cart:{name}", name="{name}")])
    (record,) = caplog.records
    assert "Write f'cart:{user.id}'" in record.getMessage()

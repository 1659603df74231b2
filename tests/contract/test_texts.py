"""Texts that an engine keeps under leases, for the answers to requests."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.waiting import PATIENCE, eventually
from weblock import ConfigurationError, LeaseLost, Locks
from weblock._adapting import KeptTexts
from weblock._runtime.runtimes import drive

GROUP, OTHER = "a1", "b2"


class BlockingTexts:
    """The texts of blocking locks, whose methods never suspend."""

    def __init__(self, texts: KeptTexts) -> None:
        self.texts = texts

    def __getattr__(self, name: str) -> Any:
        return lambda *given: drive(getattr(self.texts, name)(*given))


@pytest.fixture
def texts(locks, api) -> KeptTexts | BlockingTexts:
    texts = KeptTexts(locks, "this test")
    return texts if api.name == "asyncio" else BlockingTexts(texts)


def test_an_engine_keeps_texts_or_says_that_it_cannot(locks, api, promises) -> None:
    """One that cannot is named, with those that can."""
    if promises.texts:
        assert KeptTexts(locks, "this test")
        return
    with pytest.raises(ConfigurationError, match=r"^this test keeps answers.*postgresql://"):
        KeptTexts(locks, "this test")


@pytest.mark.promise("texts")
def test_a_text_is_kept_by_the_holder_and_found_by_all(locks, api, one, other, texts) -> None:
    """It belongs to its key and group, replaces an earlier one, and can be forgotten."""
    text = "é\n" + "x" * 100_000
    for each in ("first", text):
        lease = one.do(locks.acquire, "order")
        one.do(texts.keep, lease, GROUP, each, PATIENCE)
        one.do(lease.release)
    lease = one.do(locks.acquire, "another order")
    one.do(texts.keep, lease, GROUP, "x", 2 * PATIENCE)
    found = other.do(texts.find, "order", GROUP)
    assert found[:2] == (text, 2)
    assert PATIENCE / 2 < found.rest <= PATIENCE
    assert other.do(texts.find, "order", OTHER)[:2] == (None, 0)
    assert other.do(texts.find, "no order", GROUP)[:2] == (None, 2)
    assert sorted(other.do(texts.all, 9)) == [("another order", "x"), ("order", text)]
    assert other.do(texts.forget, "order", GROUP) is True
    assert other.do(texts.forget, "order", GROUP) is False
    assert other.do(texts.find, "order", GROUP)[:2] == (None, 1)


@pytest.mark.promise("texts")
def test_the_texts_of_a_namespace_are_its_own(locks, api, one, url, texts) -> None:
    """Another application, with callers of the same names, neither finds nor counts them."""
    lease = one.do(locks.acquire, "order")
    one.do(texts.keep, lease, GROUP, "x", PATIENCE)
    others = KeptTexts(api.open(url, namespace="blog"), "this test")
    theirs = others if api.name == "asyncio" else BlockingTexts(others)
    assert one.do(theirs.find, "order", GROUP)[:2] == (None, 0)
    assert one.do(theirs.all, 9) == []
    assert one.do(texts.find, "order", GROUP)[:2] == ("x", 1)
    api.shut(others.locks)


@pytest.mark.promise("texts", "locks")
def test_a_stale_holder_keeps_nothing(locks, one, other, texts, probe) -> None:
    """The engine decides, for the holder may not know yet that its lease was taken away. Nor is it counted."""
    stale = one.do(locks.acquire, "order", ttl=60)
    also = one.do(locks.acquire, "another order", ttl=60)
    assert probe.force_release("order")
    assert probe.force_release("another order")
    with pytest.raises(LeaseLost):
        one.do(texts.keep, also, GROUP, "stale", PATIENCE)
    newer = other.do(locks.acquire, "order", ttl=60)
    other.do(texts.keep, newer, GROUP, "newer", PATIENCE)
    with pytest.raises(LeaseLost):
        one.do(texts.keep, stale, GROUP, "stale", PATIENCE)
    assert other.do(texts.all, 9) == [("order", "newer")]
    assert other.do(texts.find, "order", GROUP)[:2] == ("newer", 1)


@pytest.mark.promise("texts")
def test_a_text_ends(locks, one, texts) -> None:
    """After its time it is neither found nor counted, and another takes its place."""
    lease = one.do(locks.acquire, "order")
    one.do(texts.keep, lease, GROUP, "first", 0.05)
    eventually(lambda: one.do(texts.find, "order", GROUP)[:2] == (None, 0))
    assert one.do(texts.all, 9) == []
    one.do(texts.keep, lease, GROUP, "second", PATIENCE)
    assert one.do(texts.find, "order", GROUP)[:2] == ("second", 1)


def test_memory_does_not_fill_with_texts_that_have_ended(monkeypatch) -> None:
    """Those of all groups are removed when about as many others were kept."""
    with Locks.from_url("memory://texts") as locks:
        texts, engine = KeptTexts(locks, "this test"), locks._engine
        with locks.hold("order", ttl=1000) as lease:
            for number in range(50):
                drive(texts.keep(lease, f"a{number}", "x", 60))
            assert len(engine.texts) == 50
            later = engine.now() + 61
            monkeypatch.setattr(engine, "now", lambda: later)
            for _ in range(50):
                drive(texts.keep(lease, GROUP, "x", 60))
            assert len(engine.texts) == 1

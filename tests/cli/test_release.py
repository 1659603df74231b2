"""``weblock release``: taking a key away from a holder that hangs."""

from __future__ import annotations

import pytest

from tests.support.busy import busy
from weblock import Locks


def holder_of(locks: Locks, key: str) -> str | None:
    """The holder of the key, if there is one."""
    info = locks.inspect(key)
    return info.holder if info else None


def test_the_key_passes_on(run, locks: Locks) -> None:
    """With --force the key passes to the first waiter, and it is said from whom it was taken."""
    with busy(locks, "item:1", "web-1", "web-2"):
        done = run("release", "item:1", "--force")
        assert holder_of(locks, "item:1") == "web-2"
    assert done.stdout == "Released item:1, taken from web-1. It passes to web-2.\n"


def test_nothing_is_released_unasked(run, locks: Locks) -> None:
    """Without --force and without a terminal to ask, nothing is released."""
    with busy(locks, "item:1", "web-1"):
        done = run("release", "item:1", input="y\n")
        assert holder_of(locks, "item:1") == "web-1"
    assert done.exit_code == 2
    assert "use --force" in done.stderr


@pytest.mark.parametrize(("answer", "code"), [("y", 0), ("n", 1)])
def test_a_person_is_asked(run, locks: Locks, monkeypatch, answer: str, code: int) -> None:
    """At a terminal the command says who holds the key, and releases only if told to."""
    monkeypatch.setattr("weblock.cli.release._is_terminal", lambda: True)
    with busy(locks, "item:1", "web-1"):
        done = run("release", "item:1", input=f"{answer}\n")
        assert holder_of(locks, "item:1") == (None if answer == "y" else "web-1")
    assert done.exit_code == code
    assert "item:1 is held by web-1, for " in done.stderr


def test_another_holder_is_spared(run, told, locks: Locks) -> None:
    """With --fence, a key that has changed hands meanwhile is not taken away."""
    with busy(locks, "item:1", "web-1"):
        done = run("release", "item:1", "--force", "--fence", "7")
        assert holder_of(locks, "item:1") == "web-1"
        fence = told("show", "item:1")["fence"]
        assert told("release", "item:1", "--force", "--fence", str(fence))["released"]
    assert done.exit_code == 1
    assert "has changed hands: it is held by web-1 now" in done.stderr


def test_a_free_key_cannot_be_released(run, told) -> None:
    """To release what nobody holds exits with 1, and says so."""
    done = run("release", "item:1", "--force")
    assert (done.exit_code, done.stderr) == (1, "weblock: nobody holds item:1\n")
    assert told("release", "item:1", "--force") == {"released": False}

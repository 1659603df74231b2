"""``weblock release``: taking a key away from a holder that hangs."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from tests.support.busy import busy
from tests.support.waiting import PATIENCE
from weblock import LeaseLost, Locks

from .programs import Typed


def holder_of(locks: Locks, key: str) -> str | None:
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
def test_a_person_is_asked(run, locks: Locks, answer: str, code: int) -> None:
    """At a terminal the command says who holds the key, and releases only if told to."""
    with busy(locks, "item:1", "web-1"):
        done = run("release", "item:1", input=Typed(answer.encode()))
        assert holder_of(locks, "item:1") == (None if answer == "y" else "web-1")
    assert done.exit_code == code
    assert "item:1 is held by web-1, for " in done.stderr


def test_a_holder_steps_down(run, told, locks: Locks) -> None:
    """With --gently the holder is asked, and the command ends well when it has released the key."""
    lease = locks.acquire("item:1", ttl=60)
    renewing = threading.Event()

    def work() -> None:
        while not lease.asked_to_release:
            renewing.wait(0.01)
            lease.extend(0)
        lease.release()

    holder = threading.Thread(target=work)
    holder.start()
    done = run("release", "item:1", "--gently", "--timeout", str(PATIENCE))
    holder.join()
    assert (done.exit_code, done.stdout) == (0, "Released item:1, as asked.\n")


@pytest.mark.parametrize(("force", "code"), [((), 75), (("--force",), 0)])
def test_a_holder_goes_on(run, locks: Locks, force: tuple[str, ...], code: int) -> None:
    """One that still holds the key after the timeout is told of, or loses it with --force."""
    with busy(locks, "item:1", "web-1"):
        done = run("release", "item:1", "--gently", "--timeout", "0", *force)
        assert holder_of(locks, "item:1") == (None if force else "web-1")
    assert done.exit_code == code
    assert ("is still held by web-1" in done.stderr) is not bool(force)


@pytest.mark.parametrize(("force", "code"), [((), 75), (("--force",), 0)])
def test_one_of_several_holders_goes_on(
    run, locks: Locks, monkeypatch, force: tuple[str, ...], code: int
) -> None:
    """Where one of two releases the key as asked, the other one is told of, or loses it with --force."""
    first = locks.acquire("item:1", limit=2, label="web-1")
    monkeypatch.setattr(Locks, "ask_release", lambda *_: first.release())
    with ThreadPoolExecutor() as thread:
        second = thread.submit(locks.acquire, "item:1", limit=2, label="web-2").result()
    done = run("release", "item:1", "--gently", "--timeout", "0", *force)
    assert holder_of(locks, "item:1") == (None if force else "web-2")
    assert done.exit_code == code
    assert ("web-2" if force else "is still held by web-2,") in done.output
    with suppress(LeaseLost):
        second.release()


def test_another_holder_is_not_waited_for(run, locks: Locks) -> None:
    """With --fence, a holder with another fence is not asked."""
    lease = locks.acquire("item:1", ttl=60)
    done = run("release", "item:1", "--gently", "--fence", "7")
    lease.extend(0)
    assert (done.exit_code, lease.asked_to_release) == (1, False)
    lease.release()


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
    assert (done.exit_code, done.stderr) == (1, "weblock: item:1 is not held\n")
    assert told("release", "item:1", "--force") == {"released": False}

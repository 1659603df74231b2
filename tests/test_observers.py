"""Those who listen are told, and harm nobody."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import sys
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.events import Heard
from tests.support.forks import fork, needs_fork
from tests.support.renewals import renewed
from tests.support.waiting import PATIENCE, eventually
from weblock import (
    AsyncLocks,
    ConfigurationError,
    EngineUnavailable,
    Key,
    Locks,
    Observer,
    events,
    observe,
)
from weblock._core import reporting
from weblock._runtime import observing
from weblock.events import EVENTS, Acquired, Answered, Available, Event, Lost, NotRenewed, Released


@pytest.fixture
def url() -> str:
    """An engine of the test's own."""
    return f"memory://{uuid.uuid4().hex}"


@pytest.fixture
def stuck() -> Iterator[Callable[[Event], None]]:
    """An observer that does not return until the test is over."""
    over = threading.Event()
    yield lambda _event: over.wait(PATIENCE) and None
    over.set()


def test_a_slow_observer_holds_up_nobody(url: str, stuck: Callable[[Event], None]) -> None:
    """While an observer does not return, locks are acquired, renewed and lost in time, and others hear of it."""
    heard: list[Event] = []
    with Locks.from_url(url, observers=[stuck, heard.append]) as locks:
        lease = locks.acquire("renewed")
        lost = locks.acquire("lost", renew=False, ttl=0.3)
        told = threading.Event()
        lost.on_lost(told.set)
        assert told.wait(PATIENCE)
        renewed(locks, lease)
        lease.release()
        eventually(lambda: [type(each) for each in heard] == [Acquired, Acquired, Lost, Released])


def test_an_observer_that_raises_is_logged_and_called_again(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """What an observer raises changes nothing for the lock, nor for the next event, and is logged once a minute."""
    called: list[Event] = []

    def fail(event: Event) -> None:
        called.append(event)
        raise OSError("the printer is on fire")

    observers = [fail, Observer(fail, immediate=True)]
    with Locks.from_url(url, observers=observers) as locks:
        for _ in range(3):
            locks.acquire("a").release()
        eventually(lambda: len(called) == 12)
    failures = [each for each in caplog.records if repr(fail) in each.message]
    assert len(failures) == 2


@pytest.mark.parametrize("immediate", [False, True])
def test_a_condition_that_raises_changes_nothing(
    url: str, caplog: pytest.LogCaptureFixture, immediate: bool
) -> None:
    """Nothing is passed on where ``when`` fails, an observer whose ``asleep`` fails is awake, and locks work."""

    def fails(*_event: Event) -> bool:
        raise ZeroDivisionError

    heard: list[Event] = []
    observers = [
        Observer(heard.append, when=fails, immediate=immediate),
        Observer(heard.append, only=[Acquired], asleep=fails, immediate=immediate),
    ]
    with Locks.from_url(url, observers=observers) as locks, locks.hold("key"):
        pass
    assert [type(event) for event in heard] == [Acquired]
    assert caplog.text.count("an observer failed") == 2


def test_events_beyond_what_a_slow_observer_may_leave_are_dropped(
    url: str,
    stuck: Callable[[Event], None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A slow observer costs bounded memory, and a warning says that it misses events."""
    monkeypatch.setattr(observing, "MOST_UNTOLD", 10)
    monkeypatch.setattr(
        observing, "_too_slow", observing.Seldom(60.0)
    )  # No other test has been told yet.
    observer = Observer(stuck)
    with Locks.from_url(url, observers=[observer]) as locks:
        for _ in range(20):
            locks.acquire("a").release()
    assert len([each for each in caplog.records if "too slow" in each.message]) == 1


def test_closing_waits_for_what_is_still_to_be_told(url: str) -> None:
    """When a Locks has been closed, its observers have heard everything."""
    heard: list[Event] = []

    def hear(event: Event) -> None:
        time.sleep(0.01)
        heard.append(event)

    with Locks.from_url(url, observers=[hear]) as locks:
        locks.acquire("a").release()
    assert [type(event) for event in heard] == [Acquired, Released]


def test_an_observer_may_close_the_locks_that_told_it(url: str) -> None:
    """Closing from an observer waits for nobody, least of all for itself."""
    closed = threading.Event()
    locks = Locks.from_url(url)

    def close(event: Event) -> None:
        if isinstance(event, Released):
            locks.close()
            closed.set()

    locks.observe(close)
    locks.acquire("a").release()
    assert closed.wait(PATIENCE)


def test_observers_may_come_and_go(url: str) -> None:
    """An observer hears what happens between its coming and its going, and so does one of the whole process."""
    own, all_of_process = Heard(), Heard()
    with Locks.from_url(url) as locks, Locks.from_url(url) as others:
        stop = locks.observe(own.observer)
        stop_all = observe(all_of_process.observer)
        locks.acquire("a").release()
        others.acquire("b").release()
        stop()
        stop_all()
        locks.acquire("c").release()
    assert [event.key for event in own] == ["a", "a"]
    assert [event.key for event in all_of_process if event.engine == url] == ["a", "a", "b", "b"]


async def test_immediate_observers_run_in_the_context_of_the_caller(url: str) -> None:
    """An immediate observer is called in the task that acquires and releases."""
    tasks: list[Any] = []
    observer = Observer(lambda _event: tasks.append(asyncio.current_task()), immediate=True)
    async with AsyncLocks.from_url(url, observers=[observer]) as locks, locks.hold("a"):
        pass
    assert tasks == [asyncio.current_task()] * 2


def test_only_some_events(url: str) -> None:
    """``only`` limits what is told, and names what is told to nobody else."""
    heard: list[Event] = []
    observer = Observer(heard.append, only=[Answered], immediate=True)
    with Locks.from_url(url, observers=[observer]) as locks:
        locks.acquire("a").release()
    assert [event.operation for event in heard if isinstance(event, Answered)] == [
        "acquire",
        "release",
    ]
    assert len(heard) == 2


@pytest.mark.parametrize(
    ("observers", "why"),
    [
        (["print"], "observer 'print' cannot be called: give a function that takes one event"),
        (print, "must be a list of functions"),
        ("print", "must be a list of functions"),
        ([asyncio.sleep], "is async, and observers are called where no event loop runs"),
    ],
    ids=["no function", "a function", "a string", "async"],
)
def test_what_is_no_observer_is_refused(observers: Any, why: str) -> None:
    """A mistake is refused where the locks are made, with the remedy."""
    with pytest.raises(ConfigurationError, match=why):
        Locks.from_url("memory://", observers=observers)


def test_what_is_no_kind_of_event_is_refused() -> None:
    """``only`` takes classes of events, and says so."""
    with pytest.raises(
        ConfigurationError, match=r"not a kind of event: give classes of weblock\.ev"
    ):
        Observer(print, only=["lost"])  # type: ignore[list-item]


def test_events_are_frozen_and_say_what_they_are() -> None:
    """An event is a value: it compares, cannot be changed, and is ready for JSON."""
    event = EVENTS["not_renewed"](engine="memory://", cause="no threads")
    assert event == EVENTS["not_renewed"](engine="memory://", cause="no threads")
    assert event.facts() == {"engine": "memory://", "cause": "no threads"}
    with pytest.raises(AttributeError):
        event.engine = "redis://"  # type: ignore[misc]


@pytest.mark.parametrize("api", [Locks, AsyncLocks])
def test_locks_tell_that_greenlets_renew_their_leases(
    api: type[Locks | AsyncLocks],
    url: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Where threads are greenlets, each Locks tells its observers; the log says it once, with the remedy."""
    patched = SimpleNamespace(is_monkey_patched=lambda _name: True)
    monkeypatch.setitem(sys.modules, "eventlet.patcher", patched)
    heard = Heard()
    for _ in range(2):
        made = api.from_url(url, observers=[heard.observer])
        made.close() if isinstance(made, Locks) else asyncio.run(made.close())
    cause = "eventlet has replaced this process's threads by greenlets"
    assert heard == [NotRenewed(engine=url, cause=cause)] * 2
    (said,) = [each.getMessage() for each in caplog.records if f" {url} " in each.getMessage()]
    assert cause in said
    assert "raise its ttl=" in said


def test_a_key_knows_its_template() -> None:
    """Decorators and ``Key`` fill keys in that know what they were filled in from."""
    key = Key("item:{item_id}", item_id="a/b")
    assert (key, key.template) == ("item:a%2Fb", "item:{item_id}")
    heard = Heard()
    with Locks.from_url(f"memory://{uuid.uuid4().hex}", observers=[heard.observer]) as locks:

        @locks.serialized("item:{item_id}")
        def work(item_id: int) -> None: ...

        @locks.serialized("everything")
        def other() -> None: ...

        work(7)
        other()
        with locks.hold("by hand", key):
            pass
    acquired = {event.key: event.template for event in heard.of(Acquired)}
    assert acquired == {
        "item:7": "item:{item_id}",
        "everything": "everything",
        "by hand": None,
        "item:a%2Fb": "item:{item_id}",
    }


@needs_fork
def test_a_child_tells_its_own_story(url: str, stuck: Callable[[Event], None]) -> None:
    """In a forked child, observers hear of what the child does, and not of what the parent had to tell."""
    heard: list[Event] = []
    with Locks.from_url(url, observers=[stuck, heard.append]) as locks:
        lease = locks.acquire("of the parent")
        eventually(lambda: heard)

        child = fork()
        if child == 0:
            heard.clear()
            locks.acquire("of the child").release()
            eventually(lambda: len(heard) == 2)
            os._exit(0 if {event.facts()["key"] for event in heard} == {"of the child"} else 1)
        assert os.waitpid(child, 0)[1] == 0
        lease.release()


def test_a_locks_that_nobody_refers_to_is_not_kept_for_its_observers(url: str) -> None:
    """Whoever observes the whole process keeps no Locks alive."""
    locks = Locks.from_url(url)
    locks.close()
    audience = weakref.ref(locks._observers)
    del locks
    gc.collect()
    assert audience() is None


def test_many_threads_tell_without_losing_any(url: str) -> None:
    """Each lease of many threads is told once as acquired and once as released."""
    heard: list[Event] = []
    with (
        Locks.from_url(url, observers=[heard.append], wait=None) as locks,
        ThreadPoolExecutor(8) as pool,
    ):
        for _ in pool.map(lambda n: locks.acquire(f"{n % 4}").release(), range(200)):
            pass
    fences: dict[type[Event], list[Any]] = {Acquired: [], Released: []}
    for event in heard:
        if type(event) in fences:
            facts = event.facts()
            fences[type(event)].append((facts["key"], facts["fence"]))
    assert sorted(fences[Acquired]) == sorted(fences[Released])
    assert len(set(fences[Acquired])) == 200


@pytest.mark.parametrize("api", [Locks, AsyncLocks])
def test_what_nobody_wants_costs_no_call(api: type[Locks | AsyncLocks], url: str) -> None:
    """With no observer but the log, acquiring and releasing builds no event, and calls nothing for one."""
    called: list[str] = []
    of_events = {"logging", events.__name__, reporting.__name__}
    of_events.add(observing.__name__)

    def note(frame: Any, event: str, _arg: object) -> None:
        if event == "call" and frame.f_globals["__name__"] in of_events:
            called.append(frame.f_code.co_name)

    assert not logging.getLogger("weblock").isEnabledFor(logging.DEBUG)
    with once_at_a_time(api, url) as acquire_and_release:
        acquire_and_release()
        gc.collect()  # Else what other tests have left may be finalized meanwhile.
        sys.setprofile(note)
        try:
            acquire_and_release()
        finally:
            sys.setprofile(None)
    assert called == []


@contextmanager
def once_at_a_time(api: type[Locks | AsyncLocks], url: str) -> Iterator[Callable[[], None]]:
    """A function that acquires and releases a key by one of the two APIs."""
    if issubclass(api, Locks):
        with api.from_url(url) as locks:
            yield lambda: locks.acquire("a").release()
        return

    async def acquire_and_release() -> None:
        await (await in_loop.acquire("a")).release()

    with asyncio.Runner() as runner:
        in_loop = api.from_url(url)
        yield lambda: runner.run(acquire_and_release())
        runner.run(in_loop.close())


def test_an_outage_that_no_acquisition_met_ends_too(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine that failed while it was only pinged is told to answer again with the next acquisition."""
    heard = Heard()

    async def look(_name: str) -> None:
        raise EngineUnavailable(url, "it is down")

    with Locks.from_url(url, observers=[heard.observer]) as locks:
        with monkeypatch.context() as down:
            down.setattr(locks._locker.store, "look", look)
            for _ in range(2):
                with pytest.raises(EngineUnavailable):
                    locks.ping()
        locks.acquire("a").release()
        locks.acquire("a").release()
    lease = ["acquired", "released"]
    assert heard.names == ["unavailable", "unavailable", "available", *lease, *lease]
    (back,) = heard.of(Available)
    assert back.requests == 2


def test_a_finalizer_that_removes_an_observer_waits_for_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The collector may run at any allocation, also while its thread is making a change itself."""
    heard: list[Event] = []
    ends = [observe(Observer(heard.append, immediate=True))]
    refresh = observing.Audience.refresh

    def interrupted(audience: observing.Audience) -> None:
        while ends:
            ends.pop()()
        refresh(audience)

    monkeypatch.setattr(observing.Audience, "refresh", interrupted)
    with Locks.from_url(f"memory://{uuid.uuid4().hex}") as locks, locks.hold("a"):
        pass
    assert heard == []

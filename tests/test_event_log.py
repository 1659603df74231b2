"""What is logged of events, and how often."""

from __future__ import annotations

import json
import logging
import time
import uuid
from collections.abc import Iterator
from dataclasses import fields
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.waiting import eventually
from weblock import Locks, LockTimeout
from weblock._runtime import observing
from weblock.events import (
    EVENTS,
    Answered,
    AtRisk,
    Available,
    Event,
    KeyEvent,
    Lost,
    TimedOut,
    Unavailable,
)

FACTS: dict[str, Any] = {
    "namespace": "shop",
    "key": "item:7",
    "template": "item:{item_id}",
    "label": "web-1:42",
    "fence": 12,
    "waited": 1.5,
    "wait": 2.0,
    "held_for": 3.0,
    "handed_over": True,
    "cause": "it is down",
    "reason": "expired",
    "remaining": 0.5,
    "place": 3,
    "holder": "web-2:43",
    "others": 0,
    "waiters": 4,
    "operation": "acquire",
    "recovering": False,
    "lasted": 65.0,
    "requests": 9,
    "retry_after": 5.0,
    "by": "an operator",
    "duration": 0.1,
    "failed": False,
    "ttl": 30.0,
    "outcome": "replayed",
}


def made(kind: type[Event], **facts: Any) -> Any:
    """An event of an engine of its own, unless it is said which."""
    given = {"engine": f"memory://{uuid.uuid4().hex}", **FACTS, **facts}
    return kind(**{name: given[name] for name in (each.name for each in fields(kind))})


@pytest.fixture(autouse=True)
def everything(caplog: pytest.LogCaptureFixture) -> None:
    """All levels are logged."""
    caplog.set_level(logging.DEBUG, "weblock")


def records(caplog: pytest.LogCaptureFixture, engine: str) -> list[logging.LogRecord]:
    """What was logged of an engine: other threads may log of others."""
    return [each for each in caplog.records if each.__dict__.get("engine") == engine]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """The time that the log goes by, which the test sets.

    The log counts until the last second of this time has ended. In real time that may be far off: on a
    machine that has just started, the thread that counts would sleep through the tests that follow.
    """
    clock = [1000.0]
    stands = SimpleNamespace(monotonic=lambda: clock[0], sleep=lambda _seconds: time.sleep(0.001))
    monkeypatch.setattr(observing, "time", stands)
    yield clock

    def is_quiet() -> bool:
        # Other threads may have had something to log before this time began, and since.
        clock[0] = max(clock[0], time.monotonic()) + observing.MINUTE
        return not observing._floods._has_suppressed

    eventually(is_quiet)


LEVELS = {
    "DEBUG": {
        *("waiting", "acquired", "released", "handed_over", "taken_over", "gave_up", "repeated"),
    },
    "INFO": {"timed_out", "refused", "release_asked"},
    "WARNING": {
        *("at_risk", "lost", "forgotten", "unavailable", "recovering", "failed_open"),
        *("not_renewed", "forced"),
    },
}


@pytest.mark.parametrize(
    "kind", [kind for kind in EVENTS.values() if kind not in (Answered, Available)]
)
def test_events_have_their_levels_and_fields(
    kind: type[Event], caplog: pytest.LogCaptureFixture
) -> None:
    """Each event is one record with its level, its facts and the fields that all have, ready for JSON."""
    event = made(kind)
    observing.write(event)
    (record,) = records(caplog, event.engine)
    assert kind.name in LEVELS[record.levelname]
    assert record.name == ("weblock.audit" if kind.name == "forced" else "weblock")
    facts: dict[str, Any] = record.__dict__
    assert json.loads(json.dumps(event.facts())) == {name: facts[name] for name in event.facts()}
    assert facts["event"] == kind.name
    assert {"namespace", "key", "template", "label", "fence", "waited", "count"} <= facts.keys()
    if isinstance(event, KeyEvent):
        assert "'item:7'" in record.getMessage()


def test_an_outage_is_told_when_it_begins_now_and_then_and_when_it_ends(
    caplog: pytest.LogCaptureFixture, clock: list[float]
) -> None:
    """A silent engine is one warning at once, one for each minute, and one line when it is back."""
    engine = f"redis://{uuid.uuid4().hex}"
    for minutes in (1, 2):
        for _ in range(480):
            observing.write(made(Unavailable, engine=engine))
        assert len(records(caplog, engine)) == minutes
        clock[0] += observing.MINUTE
        eventually(lambda minutes=minutes: len(records(caplog, engine)) > minutes)
    observing.write(made(Unavailable, engine=engine))
    observing.write(made(Available, engine=engine, lasted=130.0, requests=1040))
    observing.write(made(Available, engine=engine))
    begun, *reminders, back = records(caplog, engine)
    assert (
        begun.getMessage()
        == f"engine {engine} is unavailable: it is down [weblock.engine_unavailable]"
    )
    assert [record.levelname for record in reminders] == ["WARNING"] * 2
    told = [
        f"{count} more requests to engine {engine} failed within a minute: it is down"
        " [weblock.engine_unavailable]"
        for count in (479, 480)
    ]
    assert [each.getMessage() for each in reminders] == told
    assert (back.levelname, back.getMessage()) == (
        "INFO",
        f"engine {engine} is available again after 130.0 s, in which 1040 requests failed",
    )


def test_an_engine_that_recovers_is_no_outage(caplog: pytest.LogCaptureFixture) -> None:
    """It answers, and why it grants nothing is told by another event."""
    event = made(Unavailable, recovering=True)
    observing.write(event)
    assert not records(caplog, event.engine)


@pytest.mark.parametrize(("kind", "most"), [(TimedOut, 1), (Lost, 10), (AtRisk, 10)])
def test_a_flood_is_a_few_lines_with_a_count(
    kind: type[Event], most: int, caplog: pytest.LogCaptureFixture, clock: list[float]
) -> None:
    """Of a thousand events in a second some are lines, and one more line says how many there were."""
    engine = f"redis://{uuid.uuid4().hex}"
    for number in range(1000):
        observing.write(made(kind, engine=engine, key=f"item:{number}"))
    assert len(records(caplog, engine)) == most
    clock[0] += 1
    eventually(lambda: len(records(caplog, engine)) > most)
    *lines, last = records(caplog, engine)
    assert "more like it within a second" in last.getMessage()
    assert sum(each.__dict__["count"] for each in (*lines, last)) == 1000
    assert "'item:999'" in last.getMessage()


def test_sorts_of_keys_do_not_drown_each_other(
    caplog: pytest.LogCaptureFixture, clock: list[float]
) -> None:
    """A flood at one template leaves the first line of another."""
    engine = f"redis://{uuid.uuid4().hex}"
    for template in ("item:{item_id}", "item:{item_id}", "shop:{shop_id}", None):
        observing.write(made(TimedOut, engine=engine, template=template))
    assert len(records(caplog, engine)) == 3


@pytest.mark.parametrize(
    ("others", "said"),
    [(0, "web-2:43'"), (1, "web-2:43' and 1 other"), (2, "'web-2:43' and 2 others")],
)
@pytest.mark.parametrize("kind", ["waiting", "timed_out", "refused", "forced"])
def test_several_holders_are_counted(
    kind: str, others: int, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Of several holders, a line names the first and says how many there are besides."""
    event = made(EVENTS[kind], others=others)
    observing.write(event)
    eventually(lambda: records(caplog, event.engine))
    (record,) = records(caplog, event.engine)
    assert said in record.getMessage()
    assert record.getMessage().count("other") == bool(others)


@pytest.mark.parametrize(
    ("kind", "fact", "one", "several"),
    [
        ("timed_out", "place", "1 caller was ahead", "2 callers were ahead"),
        ("refused", "waiters", "1 caller is waiting already", "2 callers are waiting already"),
    ],
)
def test_one_caller_is_not_several(
    kind: str, fact: str, one: str, several: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A line about a queue agrees in number with the callers that it counts."""
    for count, said in ((1, one), (2, several)):
        event = made(EVENTS[kind], **{fact: count})
        observing.write(event)
        eventually(lambda event=event: records(caplog, event.engine))
        (record,) = records(caplog, event.engine)
        assert said in record.getMessage()


@pytest.mark.parametrize(
    "text", ["a\nWARNING weblock: forged", "a\r\x1b[2Jb", "a' was lost", "a\u2028b\u202ec", "%s%n"]
)
def test_nobody_can_forge_a_line(text: str, caplog: pytest.LogCaptureFixture) -> None:
    """What others wrote, keys and labels and causes, begins no line, moves no cursor and closes no quote."""
    engine = f"memory://{uuid.uuid4().hex}"
    observing.write(made(TimedOut, engine=engine, key=text, holder=text, label=text))
    observing.write(made(AtRisk, engine=engine, key=text, cause=text))
    observing.write(made(EVENTS["forced"], engine=engine, key=text, by=text, holder=text))
    written = records(caplog, engine)
    assert len(written) == 3
    for record in written:
        message = record.getMessage()
        assert message.isprintable()
        assert message.count(repr(text)) >= 1
        texts = [value for value in record.__dict__.values() if value and isinstance(value, str)]
        assert not any("\n" in value or "\x1b" in value for value in texts)


def test_a_line_is_not_without_end(caplog: pytest.LogCaptureFixture) -> None:
    """However long a key, a label or a cause is, its line is short."""
    event = made(AtRisk, key="k" * 512, cause="c" * 100_000)
    observing.write(event)
    (record,) = records(caplog, event.engine)
    assert len(record.getMessage()) < 1000


@pytest.mark.parametrize("logger", ["weblock", None])
def test_levels_may_change_at_any_time(
    logger: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    """Locks made before logging was set up log what it asks for from the next acquisition on."""
    engine = f"memory://{uuid.uuid4().hex}"

    def logged() -> list[str]:
        return [each.__dict__["event"] for each in records(caplog, engine)]

    caplog.set_level(logging.NOTSET, "weblock")
    caplog.set_level(logging.WARNING, logger)
    with Locks.from_url(engine) as locks:
        locks.acquire("a").release()
        assert not logged()
        caplog.set_level(logging.DEBUG, logger)
        with locks.hold("a"), pytest.raises(LockTimeout):
            locks.acquire("a", wait=0)
        assert logged() == ["acquired", "timed_out", "released"]
        caplog.set_level(logging.WARNING, logger)
        caplog.clear()
        locks.acquire("a").release()
        assert not logged()

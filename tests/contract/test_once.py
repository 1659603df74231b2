"""Steps that are run once for all processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.waiting import eventually
from weblock import ConfigurationError, LeaseLost, LockTimeout

from .apis import Gate

LONG = 60.0
"""A ttl that no test waits for: whoever had to would fail."""


@pytest.fixture
def ran() -> list[str]:
    return []


def test_a_step_runs_once(locks, api, one, other, ran) -> None:
    """The first runs it with its arguments, and is told so; the others are told that it is done."""
    step = api.work(ran.append)
    assert one.do(locks.once, "init:v1", step, "first") is True
    assert one.do(locks.once, "init:v1", step, "second") is False
    assert other.do(locks.once, "init:v1", step, "third") is False
    assert one.do(locks.once, "init:v2", step, "of another step") is True
    assert ran == ["first", "of another step"]
    assert one.do(locks.list) == []


@pytest.mark.of_core
def test_a_step_that_fails_is_not_done(locks, api, one, ran) -> None:
    """Its error reaches whoever ran it, and the next one runs it again."""
    with pytest.raises(ZeroDivisionError):
        one.do(locks.once, "init", api.work(lambda: 1 / 0))
    assert one.do(locks.once, "init", api.work(ran.append), "again") is True
    assert ran == ["again"]


def test_a_step_is_forgotten_at_its_expiry(locks, api, one, ran) -> None:
    """With an ``expiry``, it is done for so long, and then runs again; for less than it, it is."""
    step = api.work(ran.append)
    one.do(locks.once, "nightly", step, "kept", expiry=LONG)
    assert not one.do(locks.once, "nightly", step, "kept still", expiry=LONG)
    one.do(locks.once, "hourly", step, "first", expiry=0.2)
    eventually(lambda: one.do(locks.once, "hourly", step, "second", expiry=LONG))
    assert ran == ["kept", "first", "second"]


@pytest.mark.of_core
def test_an_expiry_that_cannot_be_is_refused(locks, api, one, ran) -> None:
    """It is refused before the step has run."""
    for expiry in (0, -1, "tomorrow"):
        with pytest.raises(ConfigurationError, match="expiry="):
            one.do(locks.once, "init", api.work(ran.append), "no", expiry=expiry)
    assert ran == []


def test_a_step_can_be_forgotten(locks, api, one, ran) -> None:
    """After ``forget`` the step runs again, and forgetting what was never done is no error."""
    step = api.work(ran.append)
    one.do(locks.forget, "init")
    one.do(locks.once, "init", step, "first")
    one.do(locks.forget, "init")
    assert one.do(locks.once, "init", step, "second") is True
    assert ran == ["first", "second"]


@pytest.mark.promise("locks")
class TestTogether:
    def test_the_others_wait_for_its_end(self, locks, api, one, ran, waiting) -> None:
        """Those who come while it runs go on when it has ended, without running it themselves."""
        gate = Gate()
        running = one.begin(locks.once, "init", api.after(gate, ran.append), "first")
        gate.until_reached()
        others = api.actors(3)
        come = [each.begin(locks.once, "init", api.work(ran.append), "no") for each in others]
        eventually(lambda: waiting("init") == 3)
        assert not any(each.done() for each in come)
        gate.set()
        assert running.result(LONG / 3) is True
        assert [each.result(LONG / 3) for each in come] == [False] * 3
        assert ran == ["first"]

    @pytest.mark.of_core
    def test_another_takes_over_from_one_that_fails(
        self, locks, api, one, *, other, ran, waiting
    ) -> None:
        """Whoever waits for a step that then raises runs it."""
        gate = Gate()
        fails = one.begin(locks.once, "init", api.after(gate, lambda: 1 / 0))
        gate.until_reached()
        next_one = other.begin(locks.once, "init", api.work(ran.append), "second")
        eventually(lambda: waiting("init") == 1)
        gate.set()
        with pytest.raises(ZeroDivisionError):
            fails.result(LONG / 3)
        assert next_one.result(LONG / 3) is True
        assert ran == ["second"]

    @pytest.mark.of_core
    def test_a_step_may_be_waited_for_in_vain(self, locks, api, one, other, ran) -> None:
        """With ``wait``, whoever has waited so long is told that the key is busy."""
        gate = Gate()
        running = one.begin(locks.once, "init", api.after(gate, ran.append), "first")
        gate.until_reached()
        with pytest.raises(LockTimeout):
            other.do(locks.once, "init", api.work(ran.append), "no", wait=0.05)
        gate.set()
        assert running.result(LONG / 3)

    def test_a_step_whose_lease_is_lost_is_not_done(
        self, locks, api, one, *, other, ran, probe, waiting
    ) -> None:
        """It is told so at its end, at the latest, and the next one runs it again."""
        gate = Gate()
        loses = one.begin(locks.once, "init", api.after(gate, ran.append), "lost", ttl=LONG)
        gate.until_reached()
        assert probe.force_release("init")
        eventually(lambda: waiting("init") is None)
        gate.set()
        with pytest.raises(LeaseLost):
            loses.result(LONG / 3)
        assert other.do(locks.once, "init", api.work(ran.append), "again") is True


@pytest.mark.promise("locks", "processes", "remembers")
class TestProcesses:
    def test_another_takes_over_from_one_that_dies(
        self, promises, locks, api, *, one, puppet, ran, tmp_path: Path
    ) -> None:
        """When the process that runs a step is killed, whoever waits runs it, and it is done."""
        ttl = LONG if promises.death_noticed_at_once else 1
        runner = puppet(ttl=ttl)
        runner.begin("once", "init", str(tmp_path / "journal"), hang=True)
        assert runner.hear() == "running"
        waits = one.begin(locks.once, "init", api.work(ran.append), "took over")
        runner.kill()
        assert waits.result(LONG / 3) is True
        assert ran == ["took over"]

    def test_what_is_done_outlives_its_process(
        self, locks, api, one, *, puppet, ran, tmp_path
    ) -> None:
        """A step that a process has done stays done when that is gone, however it went."""
        runner = puppet()
        assert runner.do("once", "init", str(tmp_path / "journal")) == {"ran": True}
        runner.kill()
        assert one.do(locks.once, "init", api.work(ran.append), "again") is False
        assert puppet().do("once", "init", str(tmp_path / "journal")) == {"ran": False}
        assert ran == []

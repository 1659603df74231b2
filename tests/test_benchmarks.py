"""The benchmarks run. What they measure is no test's business."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks import machine
from benchmarks.__main__ import main
from benchmarks.contenders import Blocking
from benchmarks.distance import distant
from benchmarks.goals import Race, Racer
from benchmarks.growth import exponent
from benchmarks.measuring import Effort
from benchmarks.report import Findings, Line, write_between_marks
from benchmarks.workers import Crew, Outcome, Visit, most_at_once


def benchmark(*arguments: str) -> str:
    """What the command prints of one short round, in Markdown."""
    quick = ("--quick", "--asleep", "--rounds=1", "--markdown")
    command = [sys.executable, "-m", "benchmarks", *quick, *arguments]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return run.stdout


def test_the_quick_mode_of_a_case_prints_its_table() -> None:
    """Whoever runs one case gets its figures, with the goal and whether it was met."""
    printed = benchmark("--only=uncontended")
    assert "**Uncontended, blocking**" in printed
    assert "| weblock file:// |" in printed
    assert "met |" in printed


def test_a_distant_server_is_heard_later_and_in_order() -> None:
    """What is said arrives whole, each way by the delay later, and so does the end of a connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:

        def echo() -> None:
            there, _ = listener.accept()
            with there:
                while data := there.recv(1000):
                    there.sendall(data)

        echoing = pool.submit(echo)
        with distant(listener.getsockname()[1], 0.05) as port:
            with socket.create_connection(("127.0.0.1", port), timeout=60) as here:
                began, heard = time.monotonic(), b""
                for number in range(100):
                    here.sendall(b"%03d" % number)
                while len(heard) < 300:
                    heard += here.recv(1000)
                assert time.monotonic() - began >= 0.1
                assert heard == b"".join(b"%03d" % number for number in range(100))
                here.shutdown(socket.SHUT_WR)
                assert here.recv(1000) == b""
            echoing.result(timeout=60)


def test_the_redis_engine_is_measured_beside_other_locks() -> None:
    """Its cases start a server of their own."""
    printed = benchmark("--only=redis-alone")
    assert "**Redis, no contention, blocking, one thread**" in printed
    assert "| redis-py Lock |" in printed


def test_the_postgresql_engine_is_measured_beside_advisory_locks() -> None:
    """Its cases start a server of their own."""
    printed = benchmark("--only=postgresql")
    assert "| weblock postgresql://, asyncio |" in printed
    assert "| pg_advisory_lock, psycopg |" in printed


def test_the_adapters_are_measured_beside_the_bare_application() -> None:
    """The same requests go to servers with and without them, whose answers are looked at."""
    printed = benchmark("--only=web")
    assert "| FastAPI, bare |" in printed
    assert "| LockMiddleware, uncontended |" in printed


def test_no_figures_of_a_busy_machine_get_into_a_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where much else has run before, nothing is measured for a page, and it is said why."""
    page = tmp_path / "page.md"
    page.write_text("as it was")
    monkeypatch.setattr(machine.os, "getloadavg", lambda: (9.0, 9.0, 9.0))

    assert main(["--goals", "--write", str(page)]) == 1
    assert page.read_text() == "as it was"
    assert "the load was 9.0" in capsys.readouterr().err


def test_time_that_was_stolen_speaks_against_the_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine whose processors another one had is not quiet, however low its load."""
    times = iter([(1000, 0), (2000, 5), (1000, 0), (2000, 50)])
    monkeypatch.setattr(machine.os, "getloadavg", lambda: (0.1, 0.1, 0.1))
    monkeypatch.setattr(machine, "_processor_time", lambda: next(times))

    assert machine.Calm().disturbances() == []
    (found,) = machine.Calm().disturbances()
    assert found.startswith("5.0% of the time was stolen")


def test_a_table_replaces_the_one_between_its_marks(tmp_path: Path) -> None:
    """What stands around the marks in a page stays, and a page without them is refused."""
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- goals -->\nold\n<!-- end of goals -->\nafter\n")
    table = Findings("Goals", ["weblock"], [Line("a case", ["1.5"])], compares=False)

    write_between_marks(page, "goals", table)
    text = page.read_text()
    assert "| a case | 1.5 |  |" in text
    assert "old" not in text
    assert text.startswith("before\n<!-- goals -->\n")
    assert text.endswith("<!-- end of goals -->\nafter\n")
    with pytest.raises(ValueError, match="has no place for the table"):
        write_between_marks(page, "growth", table)


def test_a_goal_is_judged_by_the_ratio_to_its_floor() -> None:
    """By medians of paired slices, or, on a busy machine, by the fastest slice of each."""
    rates = {"weblock": [90.0, 10.0, 30.0], "floor: raw": [100.0, 20.0, 50.0], "peer": [1.0] * 3}
    racers = [
        Racer(SimpleNamespace(contender=SimpleNamespace(name=name)), list(each))  # type: ignore[arg-type]
        for name, each in rates.items()
    ]
    race = Race("a case", racers, goal=0.8)
    paired, fastest = (
        race.line(Effort(3, 0.1, 0, fastest=fastest), "63") for fastest in (False, True)
    )

    assert paired.contender == "a case ÷ raw"
    assert paired.figures == ["", "0.02 peer", "0.60", "", "63"]
    assert [goal.met for goal in paired.goals] == [False]
    assert fastest.figures[2] == "0.90"
    assert [goal.met for goal in fastest.goals] == [True]


def test_the_check_of_overlaps_counts_the_sections_that_are_open() -> None:
    """Three at once are three, however they begin, and one that follows another is not beside it."""
    three = [Visit(0.0, 3.0), Visit(1.0, 4.0), Visit(2.0, 5.0)]
    assert most_at_once([]) == 0
    assert most_at_once([Visit(1.0, 2.0), Visit(0.0, 1.0)]) == 1
    assert most_at_once([*three, Visit(3.0, 6.0)]) == 3
    assert most_at_once([*three, Visit(2.9, 6.0)]) == 4


@pytest.mark.parametrize(("at_once", "refused"), [(1, "0 counted of 3"), (2, "let 3"), (3, "")])
def test_a_run_with_more_sections_at_once_than_allowed_ends_with_an_error(
    at_once: int, refused: str, tmp_path: Path
) -> None:
    """The check knows the limit: more are refused, so many are not."""
    crew = Crew(Blocking("none", lambda _: nullcontext), tmp_path, 1)
    visits = [[Visit(number / 10, 1.0)] for number in range(3)]
    outcomes = [Outcome(visits, 0.0)]
    crew.start = lambda _jobs: None  # type: ignore[method-assign]
    crew.outcomes = lambda: outcomes  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match=refused) if refused else nullcontext():
        assert crew.run([], at_once=at_once) == outcomes


def test_growth_is_told_by_an_exponent() -> None:
    """A cost that is the same at all sizes has 0, one that doubles with the size has 1."""
    assert exponent({1: 7.0, 10: 7.0, 100: 7.0}) == pytest.approx(0)
    assert exponent({1: 7.0, 10: 70.0, 100: 700.0}) == pytest.approx(1)


@pytest.mark.skipif(not os.environ.get("WEBLOCK_LONG"), reason="two minutes; WEBLOCK_LONG=1")
@pytest.mark.parametrize("arguments", [["--goals"], ["--only=growth"]])
def test_goals_and_growth_are_measured(arguments: list[str]) -> None:
    """One round of each case gives the table of goals, and the tables of growth."""
    assert "met |" in benchmark(*arguments)

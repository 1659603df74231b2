"""The benchmarks run. What they measure is no test's business."""

from __future__ import annotations

import re
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks import machine
from benchmarks.__main__ import main
from benchmarks.contenders import Blocking, Target
from benchmarks.measuring import Effort, Slice
from benchmarks.races import Race, Racer
from benchmarks.report import write_between_marks
from benchmarks.workers import Crew, Outcome, Visit, most_at_once


def benchmark(*arguments: str) -> str:
    """What the command prints of one short round, in Markdown."""
    quick = ("--quick", "--asleep", "--rounds=1", "--markdown")
    command = [sys.executable, "-m", "benchmarks", *quick, *arguments]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return run.stdout


@pytest.mark.parametrize(
    ("case", "line"),
    [
        ("file", "| SQLite BEGIN IMMEDIATE |"),
        ("postgresql", "never written: pg_advisory_lock, psycopg |"),
        ("web", "| FastAPI, bare |"),
    ],
)
def test_a_case_prints_its_tables(case: str, line: str) -> None:
    """Whoever runs one case gets the figures of what weblock is compared with, and where they are from."""
    printed = benchmark(f"--only={case}")
    assert line in printed
    assert re.search(r"\d{4}-\d\d-\d\d, commit \w+(-dirty)?, \d+ cores", printed)


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


def test_a_table_replaces_the_one_between_its_marks(tmp_path: Path) -> None:
    """What stands around the marks in a page stays, and a page without them is refused."""
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- goals -->\nold\n<!-- end of goals -->\nafter\n")

    write_between_marks(page, "goals", "| a case | 1.5 |  |")
    text = page.read_text()
    assert "| a case | 1.5 |  |" in text
    assert "old" not in text
    assert text.startswith("before\n<!-- goals -->\n")
    assert text.endswith("<!-- end of goals -->\nafter\n")
    with pytest.raises(ValueError, match="has no place for the tables"):
        write_between_marks(page, "growth", "")


def slice_of(rate: float) -> Slice:
    return Slice(rate, [], 1.0, 0.0)


def test_a_goal_is_judged_by_the_ratio_to_its_floor_or_to_the_best_peer() -> None:
    """By medians of paired slices, or, on a busy machine, by the fastest slice of each."""
    rates = {"weblock": [90.0, 10.0, 30.0], "floor: raw": [100.0, 20.0, 50.0], "peer": [1.0] * 3}
    racers = [
        Racer(SimpleNamespace(contender=SimpleNamespace(name=name)), list(map(slice_of, each)))  # type: ignore[arg-type]
        for name, each in rates.items()
    ]
    race = Race("a case", racers, 0.8, Target())
    paired, fastest = (race.line(Effort(3, 0.1, fastest=fastest)) for fastest in (False, True))
    race.against_best = True

    assert paired.contender == "a case ÷ raw"
    assert paired.figures == ["", "0.02 peer", "0.60", "", ""]
    assert [goal.met for goal in paired.goals] == [False]
    assert fastest.figures[2] == "0.90"
    assert [goal.met for goal in fastest.goals] == [True]
    assert race.line(Effort(3, 0.1)).figures == ["50.00", "1.00 peer", "30.00", "", ""]


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

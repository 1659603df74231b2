"""The benchmarks run. What they measure is no test's business."""

from __future__ import annotations

import re
import subprocess
import sys
from contextlib import nullcontext
from importlib import import_module
from pathlib import Path

import pytest

from benchmarks import growth, machine
from benchmarks.contenders import Blocking, Target
from benchmarks.measuring import Effort, Slice
from benchmarks.races import Race, Racer
from benchmarks.report import Findings, at_most, write_between_marks
from benchmarks.workers import Crew, Visit


def benchmark(*arguments: str) -> str:
    """What the command prints of one short round."""
    quick = ("--quick", "--rounds=1")
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
        ("instructions", "| Redis: weblock, asyncio |"),
    ],
)
def test_a_case_prints_its_tables(case: str, line: str) -> None:
    """Whoever runs one case gets the figures of what weblock is compared with, and where they are from."""
    printed = benchmark(f"--only={case}")
    assert line in printed
    assert re.search(r"\d{4}-\d\d-\d\d, commit \w+(-dirty)?, \d+ cores", printed)


@pytest.mark.skipif(not Path(".git").exists(), reason="an earlier commit needs the repository")
def test_an_earlier_commit_races_along() -> None:
    """Whoever changes weblock sees in one run whether it got slower: both have slices in turn."""
    printed = benchmark("--only=memory", "--before=HEAD")
    assert "| weblock, before |" in printed


def test_processes_import_the_sources_that_they_are_given(tmp_path: Path) -> None:
    """An earlier weblock is measured by its own sources, not by those of the checkout."""
    (tmp_path / "weblock").mkdir()
    (tmp_path / "weblock" / "__init__.py").write_text("raise SystemExit(7)")
    with machine.importing_from(tmp_path):
        process = machine.processes.Process(target=import_module, args=("weblock",))
        process.start()
    process.join()
    assert process.exitcode == 7
    assert str(tmp_path) not in sys.path


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
    with pytest.raises(ValueError, match="has no place for growth"):
        write_between_marks(page, "growth", "")


def slice_of(rate: float) -> Slice:
    return Slice(rate, 1.0, 0.0)


def test_a_goal_is_judged_by_the_ratio_to_its_floor_or_to_the_best_peer(tmp_path: Path) -> None:
    """By medians of paired slices, or, on a busy machine, by the fastest slice of each."""
    rates = {"weblock": [90.0, 10.0, 30.0], "floor: raw": [100.0, 20.0, 50.0], "peer": [1.0] * 3}
    racers = [
        Racer(Crew(Blocking(name, lambda _: nullcontext), tmp_path, 0), list(map(slice_of, each)))
        for name, each in rates.items()
    ]
    race = Race("a case", racers, 0.8, Target())
    paired, fastest = (race.row(Effort(3, 0.1, fastest=fastest)) for fastest in (False, True))
    race.against_best = True

    goal = "≥ 0.8: not met"
    assert paired == ["a case ÷ raw", "", "0.02 peer", "0.60", "", "", "", goal]
    assert fastest[3:] == ["0.90", "", "", "", "≥ 0.8: met"]
    assert race.row(Effort(3, 0.1))[1:4] == ["50.00", "", "30.00"]

    earlier = Blocking("weblock, before", lambda _: nullcontext, Path("src"))
    racers.append(Racer(Crew(earlier, tmp_path, 0), list(map(slice_of, [60.0, 20.0, 15.0]))))
    assert race.row(Effort(3, 0.1, fastest=True))[2:5] == ["", "90.00", "1.50"]


def test_a_run_whose_sections_overlap_ends_with_an_error(tmp_path: Path) -> None:
    """One that follows another is not beside it; of different keys, any may be open."""
    crew = Crew(Blocking("none", lambda _: nullcontext), tmp_path, 1)
    crew.start = lambda _jobs: None  # type: ignore[method-assign]
    for visits, overlap in (
        ([], False),
        ([[Visit(1.0, 2.0)], [Visit(0.0, 1.0)]], False),
        ([[Visit(0.0, 2.0)], [Visit(1.0, 3.0)]], True),
    ):
        crew.visits = lambda visits=visits: visits  # type: ignore[method-assign, misc]
        assert crew.run([], one_key=False) == visits
        with pytest.raises(RuntimeError, match="none let 1 of 2") if overlap else nullcontext():
            assert crew.run([]) == visits


def test_the_plots_of_growth_have_a_line_for_each_row(tmp_path: Path) -> None:
    """Each table becomes a plot with its goal, and the picture says what it was measured on."""
    table = Findings(
        "a table", ["8", "1,000", "goal"], [["Redis", "1.00", "1.20", at_most(1.3, 1.2)]]
    )
    growth.draw([table] * 4, tmp_path / "growth.svg", "commit 1234567")
    picture = (tmp_path / "growth.svg").read_text()
    assert picture.count(">Redis<") == 4
    assert picture.count(">goal<") == 4
    assert ">1,000<" in picture
    assert "commit 1234567" in picture

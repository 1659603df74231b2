"""What the demo says: the outcomes side by side, the timelines, and whether it showed its point."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from demo import timeline
from demo.engine import Engine
from demo.load import Answer
from demo.outcome import Run, Takeover
from demo.server import Framework
from demo.shop import BOUND, WORK

LONGEST_LIST: Final = 20
"""With more requests than this, equal answers are counted instead of listed."""


def introduce(
    console: Console, engine: Engine, framework: Framework, requests: int, workers: int
) -> None:
    """Says what is about to be shown."""
    console.print(
        f"A {framework.name} application may make at most [bold]{BOUND} items[/]. Its handler"
        f" counts them, does some work ({WORK} s), and adds one if there were fewer than {BOUND}."
        f" It runs in [bold]{workers} workers[/], each a server of its own; they share one SQLite"
        f" file. [bold]{requests} requests[/] come at once, to the workers in turn.\n"
    )
    console.print(Text.assemble("Engine of the lock: ", (engine.title, "bold"), "\n"))


def compare(console: Console, without: Run, locked: Run) -> None:
    """Both outcomes side by side, and the timeline of each."""
    runs = (without, locked)
    table = Table("", "without the lock", "with the lock", header_style="bold")
    if len(without.answers) <= LONGEST_LIST:
        for number, pair in enumerate(zip(without.answers, locked.answers, strict=True), 1):
            styles = ["green" if each.status == 201 else "dim" for each in pair]
            table.add_row(f"request {number}", *map(Text, map(_text, pair), styles))
    else:
        table.add_row("answers", *(_counted(each.answers) for each in runs))
    table.add_section()
    kept = [each.items <= BOUND for each in runs]
    table.add_row(
        "[bold]items made",
        *(
            f"[bold {'green' if good else 'red'}]{each.items}: bound of {BOUND}"
            f" {'kept' if good else 'BROKEN'}"
            for each, good in zip(runs, kept, strict=True)
        ),
    )
    table.add_row("most at once", *(str(each.at_once) for each in runs))
    table.add_row("workers involved", *(str(each.took_part) for each in runs))
    console.print(table)
    console.print("\n[bold]Who was inside the handler when[/], by worker:")
    console.print(timeline.legend(console))
    console.print("\n[bold]Without the lock[/]: they count before others have added.")
    console.print(timeline.draw(console, without))
    console.print("\n[bold]With the lock[/]: one after another, whichever worker they are at.")
    console.print(timeline.draw(console, locked))


def draw(console: Console, without: Run, locked: Run, path: Path) -> None:
    """Draw both runs into an SVG file."""
    from demo import picture

    says = (
        "every request counts before another has added",
        "one request at a time, in whichever worker it runs",
    )
    panels = [
        picture.Panel(title, each, run)
        for title, each, run in zip(
            ("Without weblock", "With weblock"), says, (without, locked), strict=True
        )
    ]
    picture.draw(panels, path)
    console.print(f"\nPicture of both timelines: {path}")


def show_takeover(console: Console, takeover: Takeover) -> None:
    """How it went on after a death."""
    run, engine = takeover.run, takeover.engine
    console.print(
        f"\n[bold]A worker dies while it holds the lock[/]: kill -9 {run.workers[0]}, while"
        " others wait."
    )
    console.print(timeline.draw(console, run, died=takeover.died))
    if not takeover.next or not takeover.first:
        console.print("No request went on.")
        return
    why = (
        "On one machine, the engine sees at once that a process is gone."
        if engine.sees_deaths
        else "From afar, a dead holder looks like a slow one: what was left of its lease had to run"
        f" out. That is {engine.ttl:g} s at most, the ttl that the demo has chosen."
    )
    console.print(
        f"{takeover.after:.2f} s after its death, worker {takeover.next.worker} was at work on the"
        f" next request: {_text(takeover.first)}. {why}"
    )


def verdict(
    console: Console, framework: Framework, without: Run, locked: Run, takeover: Takeover
) -> int:
    """Says whether the demo showed what it is to show. Returns the exit status."""
    claims = {
        "without the lock no race was seen: try --requests 50": without.raced,
        "the lock did not hold": locked.held,
        "only one worker had the lock: try --requests 50": locked.took_part > 1,
        "no request took over from the killed worker in time": takeover.succeeded,
    }
    shown = (
        f"[bold green]The lock held.[/] It is in one line of {framework.file},"
        f" [cyan]{framework.line}[/], and nothing else differs."
    )
    return conclude(console, claims, shown)


def conclude(console: Console, claims: dict[str, bool], shown: str) -> int:
    """Says which claims were not shown, or that all were. Returns the exit status."""
    failures = [failure for failure, seen in claims.items() if not seen]
    console.print()
    for failure in failures:
        console.print(f"[bold red]Not shown:[/] {failure}.")
    if not failures:
        console.print(shown)
    return 1 if failures else 0


def _text(answer: Answer) -> str:
    return f"{answer.status or '---'} {answer.code or answer.text}"


def _counted(answers: Sequence[Answer]) -> str:
    kinds = Counter("201 item made" if each.status == 201 else _text(each) for each in answers)
    return "\n".join(f"{count:>3} x {kind}" for kind, count in sorted(kinds.items()))

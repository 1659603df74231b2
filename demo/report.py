"""What the demo says: the outcomes side by side, the time lines, and whether it showed its point."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from demo import picture
from demo.engine import Engine
from demo.framework import Framework
from demo.load import Answer
from demo.outcome import BOUND, WORK, Run, Takeover
from demo.timeline import ASCII, UNICODE, Marks, draw, legend

LONGEST_LIST: Final = 20
"""With more requests than this, equal answers are counted instead of listed."""


def introduce(
    console: Console, engine: Engine, framework: Framework, requests: int, workers: int
) -> None:
    """Says what is about to be shown."""
    console.print(
        f"A {framework.name} application may make at most [bold]{BOUND} items[/]. Its handler counts them, does"
        f" some work (0.15 s), and adds one if there were fewer than {BOUND}. It runs in"
        f" [bold]{workers} workers[/] behind one address, each a uvicorn server of its own; they"
        f" share one SQLite file. [bold]{requests} requests[/] come at once.\n"
    )
    console.print(Text.assemble("Engine of the lock: ", (engine.title, "bold"), "\n"))


def compare(console: Console, without: Run, locked: Run) -> None:
    """Both outcomes side by side, and the time line of each."""
    table = Table("", "without the lock", "with the lock", header_style="bold")
    if len(without.answers) <= LONGEST_LIST:
        for number, pair in enumerate(zip(without.answers, locked.answers, strict=True), 1):
            table.add_row(f"request {number}", *map(answer_text, pair))
    else:
        table.add_row("answers", _counted(without.answers), _counted(locked.answers))
    table.add_section()
    table.add_row(
        "items made", *(items_text(each.items) for each in (without, locked)), style="bold"
    )
    table.add_row("most at once", str(without.at_once), str(locked.at_once))
    table.add_row("workers involved", str(without.took_part), str(locked.took_part))
    console.print(table)

    marks = marks_of(console)
    console.print("\n[bold]Who was inside the handler when[/], by worker:")
    console.print(indented(legend(marks)))
    console.print("\n[bold]Without the lock[/]: they count before others have added.")
    console.print(draw(without.sections, without.workers, console.width, marks=marks))
    console.print("\n[bold]With the lock[/]: one after another, whichever worker they are at.")
    console.print(draw(locked.sections, locked.workers, console.width, marks=marks))


def draw_picture(console: Console, without: Run, locked: Run, path: Path) -> None:
    """Write the picture of both runs to a file."""
    path.write_text(picture_of(without, locked))
    console.print(f"\nPicture of both timelines: {path}")


def picture_of(without: Run, locked: Run) -> str:
    """Return the timelines without and with the lock as SVG."""
    drawing = picture.Drawing(
        "Which requests were in the handler at which time, without and with the lock",
        bound=BOUND,
        work=WORK,
    )
    return picture.draw(
        drawing,
        [
            _panel("Without weblock", "every request counts before another has added", without),
            _panel("With weblock", "one request at a time, in whichever worker it runs", locked),
        ],
    )


def _panel(title: str, says: str, run: Run) -> picture.Panel:
    return picture.Panel(title, says, run.sections, run.items, run.overlaps, run.held)


def show_takeover(console: Console, takeover: Takeover) -> None:
    """How it went on after a death."""
    marks, death = marks_of(console), takeover.death
    console.print(
        f"\n[bold]A worker dies while it holds the lock[/]: kill -9 {death.worker},"
        f" at the {marks.death}, while others wait."
    )
    console.print(
        draw(
            [death.cut(each) for each in takeover.sections],
            takeover.workers,
            console.width,
            death=death,
            marks=marks,
        )
    )
    console.print(indented(_told(takeover)))


def verdict(
    console: Console, framework: Framework, without: Run, locked: Run, takeover: Takeover
) -> int:
    """Says whether the demo showed what it is to show. Returns the exit status."""
    claims = {
        "without the lock no race was seen: try --requests 50": without.raced,
        "the lock did not hold": locked.held,
        "only one worker had the lock: try --requests 50": locked.across,
        "no request took over from the killed worker in time": takeover.succeeded,
    }
    failures = [failure for failure, shown in claims.items() if not shown]
    console.print()
    for failure in failures:
        console.print(f"[bold red]Not shown:[/] {failure}.")
    if not failures:
        console.print(
            f"[bold green]The lock held.[/] It is in one line of {framework.file},"
            f" [cyan]{framework.line}[/], and nothing else differs."
        )
    return 1 if failures else 0


def marks_of(console: Console) -> Marks:
    """The characters that a console can show."""
    return UNICODE if console.encoding.startswith("utf") else ASCII


def indented(text: Text | str) -> Padding:
    """The text, moved a little to the right."""
    return Padding(text, (0, 0, 0, 2), expand=False)


def _told(takeover: Takeover) -> str:
    if not takeover.next or not takeover.first:
        return "No request went on."
    return (
        f"{takeover.after:.2f} s after its death, worker {takeover.next.worker} was at work on the"
        f" next request: {_text(takeover.first)}. {_why(takeover.engine)}"
    )


def _why(engine: Engine) -> str:
    if engine.sees_deaths:
        return "On one machine, the engine sees at once that a process is gone."
    return (
        "From afar, a dead holder looks like a slow one: what was left of its lease had to run"
        f" out. That is {engine.ttl:g} s at most, the ttl that the demo has chosen."
    )


def _text(answer: Answer) -> str:
    return f"{answer.status or '---'} {answer.code or answer.text}"


def answer_text(answer: Answer) -> Text:
    """What a client was told, in a word or two."""
    return Text(_text(answer), "green" if answer.status == 201 else "dim")


def _counted(answers: list[Answer]) -> Text:
    kinds = Counter("201 item made" if each.status == 201 else _text(each) for each in answers)
    return Text("\n".join(f"{count:>3} x {kind}" for kind, count in sorted(kinds.items())))


def items_text(items: int) -> Text:
    """How many items there are, and whether that is too many."""
    kept = items <= BOUND
    return Text(
        f"{items}: bound of {BOUND} {'kept' if kept else 'BROKEN'}", "green" if kept else "red"
    )

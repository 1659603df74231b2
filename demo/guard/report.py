"""What it says: both outcomes side by side, the time lines, and whether it showed its point."""

from __future__ import annotations

from typing import Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from demo.engine import Engine
from demo.framework import GUARDED
from demo.guard import TTL
from demo.guard.outcome import Sleep
from demo.outcome import BOUND
from demo.report import answer_text, indented, items_text, marks_of, tell_whether_shown
from demo.timeline import Marks, Note, draw, legend

ASLEEP: Final = "blue"


def introduce(console: Console, engine: Engine, workers: int) -> None:
    """Says what is about to be shown."""
    console.print(
        f"A {GUARDED.name} application may make at most [bold]{BOUND} items[/], and has made"
        f" {BOUND - 1}. It runs in [bold]{workers} workers[/]; they share one SQLite database. A"
        " request counts the items under the lock, and [bold]its worker is stopped[/] (SIGSTOP):"
        " a frozen container, a machine that swaps. Its lease expires, another worker takes over"
        " and adds an item. Then the first one goes on (SIGCONT), and commits.\n"
    )
    title = Text.assemble("Engine of the lock: ", (engine.title, "bold"), f"; ttl {TTL:g} s\n")
    console.print(title)


def compare(console: Console, without: Sleep, guarded: Sleep) -> None:
    """Both outcomes side by side, and the time line of each."""
    pair = (without, guarded)
    table = Table("", "without the guard", "with the guard", header_style="bold")
    table.add_row("that took over", *(answer_text(each.following) for each in pair))
    table.add_row("that was stopped", *(answer_text(each.slept) for each in pair))
    table.add_section()
    table.add_row("items made", *(items_text(each.items) for each in pair), style="bold")
    console.print(table)

    marks = marks_of(console)
    console.print("\n[bold]Who was inside the handler when[/], by worker:")
    console.print(indented(legend(marks)))
    console.print(indented(_more_legend(marks)))
    console.print("\n[bold]Without the guard[/]: it commits what it had counted before it slept.")
    _draw(console, without, marks)
    console.print("\n[bold]With the guard[/]: its commit is refused, and nothing of it remains.")
    _draw(console, guarded, marks)


def verdict(console: Console, without: Sleep, guarded: Sleep) -> int:
    """Says whether it showed what it is to show. Returns the exit status."""
    claims = {
        "without the guard, no worker committed after another had taken over": without.stale,
        "with the guard, the stale commit was not refused": guarded.refused,
    }
    return tell_whether_shown(
        console,
        claims,
        f"[bold green]The stale commit was refused.[/] It is in one line of {GUARDED.file},"
        f" [cyan]{GUARDED.line}[/]. docs/guard.md says why no moment to sleep is left.",
    )


def _draw(console: Console, sleep: Sleep, marks: Marks) -> None:
    end = next((each.leave for each in sleep.sections if each.worker == sleep.worker), None)
    notes = [Note(sleep.worker, sleep.stopped, sleep.woken, marks.asleep, ASLEEP)]
    if end:
        mark = marks.stale if sleep.stale else marks.death
        notes.append(Note(sleep.worker, end, end, mark, "bold red"))
    console.print(draw(sleep.sections, sleep.workers, console.width, notes=notes, marks=marks))


def _more_legend(marks: Marks) -> Text:
    return Text.assemble(
        (marks.asleep, ASLEEP), " stopped inside   ",
        (marks.stale, "bold red"), " its stale commit   ",
        (marks.death, "bold red"), " its commit is refused",
    )  # fmt: skip

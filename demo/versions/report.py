"""What the walk-through says."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from demo import picture, timeline
from demo.report import marks_of
from demo.versions import BOUND, TTL, VERSIONS
from demo.versions.load import SLOW, WORK
from demo.versions.outcome import Outcome


def introduce(console: Console, requests: int, replicas: int) -> None:
    """Says what is about to be shown."""
    console.print(
        f"At most [bold]{BOUND} items[/], in [bold]{replicas} replicas[/] behind one address, with"
        f" three Redis servers for the locks. Every version gets the same [bold]{requests} requests[/]:"
        f" one whose work takes {SLOW:g} s, where all locks are for {TTL:g} s, and others of"
        f" {WORK:g} s.\n"
    )


def compare(console: Console, outcomes: Sequence[Outcome]) -> None:
    """What each version let through, and the time line of each."""
    table = Table("", header_style="bold")
    for head in ("201", "400", "409", "other", "items", "overlaps", "at once"):
        table.add_column(head, justify="right")
    for each in outcomes:
        told = each.told
        other = sum(told.values()) - told[201] - told[400] - told[409]
        counts = (told[201], told[400], told[409], other)
        table.add_row(
            each.version.title,
            *(str(count) if count else "" for count in counts),
            _judged(each.items, good=each.items <= BOUND),
            _judged(each.overlaps, good=not each.overlaps),
            _judged(each.at_once, good=each.at_once == 1),
        )
    console.print(table)
    console.print(
        f"  201 made, 400 there are {BOUND}, 409 the lock is held; overlaps: pairs of handlers"
        " at work at the same time\n"
    )
    marks = marks_of(console)
    console.print(timeline.legend(marks))
    for each in outcomes:
        console.print(f"\n[bold]{each.version.title}[/]: {each.version.says}")
        console.print(timeline.draw(each.sections, each.workers, console.width, marks=marks))


def draw(console: Console, outcomes: Sequence[Outcome], path: Path) -> None:
    """Write the picture to a file."""
    path.write_text(picture_of(outcomes))
    console.print(f"\nPicture of all timelines: {path}")


def picture_of(outcomes: Sequence[Outcome]) -> str:
    """Return the timelines of all versions as SVG."""
    drawing = picture.Drawing(
        "Which handlers were in the critical section at which time, in six versions",
        bound=BOUND,
        work=WORK,
        slow=(WORK + SLOW) / 2,
    )
    return picture.draw(drawing, [_panel(each) for each in outcomes])


def _panel(outcome: Outcome) -> picture.Panel:
    version = outcome.version
    expires = version not in (VERSIONS[0], VERSIONS[-1])
    return picture.Panel(
        version.title,
        version.says,
        outcome.sections,
        outcome.items,
        outcome.overlaps,
        outcome.held,
        ttl_ends=TTL if expires else None,
    )


def verdict(console: Console, outcomes: Sequence[Outcome]) -> int:
    """Says whether that was shown which was to be shown. Returns the exit status."""
    *naive, weblock = outcomes
    failures = [f"{each.version.title}: no race was seen" for each in naive if not each.raced]
    if not weblock.held:
        failures.append(f"{weblock.version.title}: the lock did not hold")
    console.print()
    for failure in failures:
        console.print(f"[bold red]Not shown:[/] {failure}.")
    if not failures:
        console.print(
            f"[bold green]{len(VERSIONS) - 1} versions broke the bound, the last one kept it.[/] It is"
            ' one line of demo/versions/one_line.py, [cyan]Depends(lock("create_item"))[/].'
        )
    return 1 if failures else 0


def _judged(count: int, *, good: bool) -> Text:
    return Text(str(count), "green" if good else "bold red")

"""What the walk-through says."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rich.console import Console
from rich.table import Table

from demo import timeline
from demo.outcome import Run
from demo.report import conclude
from demo.shop import BOUND, WORK
from demo.versions import TTL, VERSIONS, Version


def introduce(console: Console, requests: int, replicas: int, slow: float) -> None:
    """Says what is about to be shown."""
    console.print(
        f"At most [bold]{BOUND} items[/], in [bold]{replicas} replicas[/] that get requests in"
        " turn, with three Redis servers for the locks. Every version gets the same"
        f" [bold]{requests} requests[/]: one whose work takes {slow:g} s, where all locks are for"
        f" {TTL:g} s, and others of {WORK:g} s.\n"
    )


def compare(console: Console, runs: Mapping[Version, Run]) -> None:
    """What each version let through, and the timeline of each."""
    table = Table("", header_style="bold")
    for head in ("201", "422", "409", "other", "items", "overlaps", "at once"):
        table.add_column(head, justify="right")
    for version, run in runs.items():
        told = [run.told[status] for status in (201, 422, 409)]
        table.add_row(
            version.title,
            *(str(count) if count else "" for count in (*told, len(run.answers) - sum(told))),
            _judged(run.items, good=run.items <= BOUND),
            _judged(run.overlaps, good=not run.overlaps),
            _judged(run.at_once, good=run.at_once == 1),
        )
    console.print(table)
    console.print(
        f"  201 made, 422 there are {BOUND}, 409 the lock is held; overlaps: pairs of handlers"
        " at work at the same time\n"
    )
    console.print(timeline.legend(console))
    for version, run in runs.items():
        console.print(f"\n[bold]{version.title}[/]: {version.says}")
        console.print(timeline.draw(console, run))


def draw(runs: Mapping[Version, Run], path: Path, *, slow: float) -> None:
    """Draw the timelines of all versions into an SVG file."""
    from demo import picture

    expires = VERSIONS[1:-1]
    panels = [
        picture.Panel(each.title, each.says, run, ttl_ends=TTL if each in expires else None)
        for each, run in runs.items()
    ]
    picture.draw(panels, path, slow=slow)


def verdict(console: Console, runs: Mapping[Version, Run]) -> int:
    """Says whether that was shown which was to be shown. Returns the exit status."""
    claims = {f"{each.title}: no race was seen": runs[each].raced for each in VERSIONS[:-1]}
    claims[f"{VERSIONS[-1].title}: the lock did not hold"] = runs[VERSIONS[-1]].held
    shown = (
        f"[bold green]{len(VERSIONS) - 1} versions broke the bound, the last one kept it.[/] It is"
        ' one line of demo/versions/one_line.py, [cyan]Depends(lock("create_item"))[/].'
    )
    return conclude(console, claims, shown)


def _judged(count: int, *, good: bool) -> str:
    return f"[{'green' if good else 'bold red'}]{count}"

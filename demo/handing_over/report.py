"""What it says: who was told what, and whether it showed its point."""

from __future__ import annotations

from collections import Counter

from rich.console import Console
from rich.table import Table
from rich.text import Text

from demo.engine import Engine
from demo.framework import HANDING_OVER
from demo.handing_over import WORK
from demo.handing_over.outcome import Report
from demo.load import Answer
from demo.report import tell_whether_shown


def introduce(console: Console, engine: Engine, requests: int) -> None:
    """Says what is about to be shown."""
    console.print(
        f"A {HANDING_OVER.name} application makes reports that take long ({WORK:g} s). A POST"
        " [bold]takes the lock[/] of the shop, puts a job into a queue, [bold]hands the lock over[/]"
        " to it and answers 202 at once. A worker, which is another process, [bold]takes it over[/]"
        f" and releases it when the report is done. [bold]{requests} requests[/] for one shop come at"
        " once; then GET asks for the state.\n"
    )
    console.print(Text.assemble("Engine of the lock: ", (engine.title, "bold"), "\n"))


def tell(console: Console, title: str, report: Report) -> None:
    """Show one report: the answers to POST, and what GET told."""
    console.print(f"[bold]{title}[/]")
    table = Table("request", "answer", "worker", "fence", header_style="bold")
    for (status, text), count in sorted(Counter(map(_said, report.answers)).items()):
        fence = str(report.granted) if status == 202 else ""
        table.add_row(f"POST, {count} x", f"{status} {text}", "", fence)
    for each in report.told:
        table.add_row("GET", each.state, str(each.worker or ""), str(each.fence or ""))
    console.print(table)
    console.print()


def _said(answer: Answer) -> tuple[int, str]:
    return answer.status, answer.code or answer.text


def verdict(console: Console, done: Report, killed: Report, again: Report) -> int:
    """Says whether it showed what it is to show. Returns the exit status."""
    claims = {
        "not just one request was accepted": all(each.is_single for each in (done, killed, again)),
        "the report was not made": {"queued", "done"} <= {*done.states},
        "the worker did not go on with the fence of its request": done.has_its_fence
        and killed.has_its_fence,
        "GET did not tell that a worker had died": killed.states == ["running", "abandoned"],
        "a worker that died kept the key": again.states[-1] == "done",
    }
    return tell_whether_shown(
        console,
        claims,
        f"[bold green]The lock moved on with its job.[/] See {HANDING_OVER.file}:"
        f" [cyan]{HANDING_OVER.line}[/]; demo/handing_over/worker.py:"
        " [cyan]locks.take_over(job.token)[/].",
    )

"""The story: a race, its end, and a worker that dies while it holds the lock."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple, NoReturn

import httpx
from rich.console import Console
from rich.table import Table
from rich.text import Text

from demo import trace
from demo.load import Answer, client, create_item, create_items
from demo.server import Server, serving
from demo.timeline import draw

BOUND: Final = 3
ATTEMPTS: Final = 3
"""How often the application without a lock may fail to race, which takes luck."""

WAITING: Final = 8
"""Requests that wait for the worker that is killed; some of them in other workers."""


class Run(NamedTuple):
    """What became of many requests at once."""

    answers: list[Answer]
    items: int
    sections: list[trace.Section]

    @property
    def at_once(self) -> int:
        """How many were in the critical section at the same moment."""
        return trace.most_at_once(self.sections)


def main() -> int:
    """Runs the demo. Returns the exit status: 0 if it showed what it promises."""
    options = _arguments()
    console = Console(no_color=options.no_color or None, highlight=False)
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        with tempfile.TemporaryDirectory(prefix="weblock-demo-") as directory:
            return tell(console, Path(directory), options.requests, options.workers)
    except KeyboardInterrupt:
        console.print("Interrupted: the servers are stopped, and nothing is left behind.")
        return 130


def tell(console: Console, directory: Path, requests: int, workers: int) -> int:
    """The demo, from start to end."""
    console.print(
        f"An application that may make at most [bold]{BOUND} items[/]: it counts them, does some"
        f" work, then adds one. {requests} requests come at once, to {workers} worker processes.\n"
    )
    with console.status("without the lock ..."):
        without = run_until_it_races(directory, requests, workers)
    with serving(directory / "locked", workers=workers, locked=True) as server:
        with console.status("with the lock ..."):
            locked = run(server, requests)
        compare(console, without, locked)
        with console.status("killing the worker that holds the lock ..."):
            killed, waited, answer = asyncio.run(kill_the_holder(server))
    console.print("[bold]A worker dies while it holds the lock[/]")
    console.print(
        f"  kill -9 {killed}, in mid-section; the next request, which was waiting, got"
        f" {answer.status} {answer.text} after {waited:.2f} s.\n"
    )
    return verdict(console, without, locked, answer)


def run_until_it_races(directory: Path, requests: int, workers: int) -> Run:
    """Without the lock, it may happen that nothing happens; that is how such bugs ship."""
    with serving(directory / "unlocked", workers=workers, locked=False) as server:
        for _ in range(ATTEMPTS):
            result = run(server, requests)
            if result.items > BOUND:
                break
    return result


def run(server: Server, requests: int) -> Run:
    """Many requests at once, to an application that has no items yet."""
    server.start_anew()
    answers = asyncio.run(create_items(server.url, requests))
    return Run(answers, server.items(), trace.read(server.trace))


async def kill_the_holder(server: Server) -> tuple[int, float, Answer]:
    """Kills the worker that is at work, while other requests wait.

    Returns its process, the seconds from its death to the next answer, and that answer.
    """
    server.start_anew()
    async with client(server.url) as clients:
        doomed = asyncio.create_task(create_item(clients, work=60))
        holder = await _holder(server)
        waiting = [asyncio.create_task(create_item(clients, work=0)) for _ in range(WAITING)]
        await asyncio.wait(waiting, timeout=0.5)
        os.kill(holder, signal.SIGKILL)
        killed_at = time.monotonic()
        answer = await _first_answer(waiting) or await create_item(clients, work=0)
        waited = time.monotonic() - killed_at
        await asyncio.gather(doomed, *waiting, return_exceptions=True)
    return holder, waited, answer


async def _holder(server: Server) -> int:
    while True:
        for section in trace.read(server.trace):
            return section.worker
        await asyncio.sleep(0.01)


async def _first_answer(requests: list[asyncio.Task[Answer]]) -> Answer | None:
    """The first answer; requests that the dead worker had taken get none."""
    for request in asyncio.as_completed(requests):
        with suppress(httpx.HTTPError):
            return await request
    return None


def compare(console: Console, without: Run, locked: Run) -> None:
    """Both outcomes, side by side, and the time line of each."""
    table = Table("", "without the lock", "with the lock", header_style="bold")
    for number, pair in enumerate(zip(without.answers, locked.answers, strict=True), 1):
        table.add_row(f"request {number}", *map(_answer, pair))
    table.add_section()
    table.add_row("items made", *(_items(each) for each in (without, locked)), style="bold")
    table.add_row("sections at once", str(without.at_once), str(locked.at_once))
    console.print(table)
    for title, each in (("Without the lock", without), ("With the lock", locked)):
        console.print(f"[bold]{title}[/], who was in the critical section when")
        console.print(draw(each.sections, console.width))
        console.print()


def verdict(console: Console, without: Run, locked: Run, answer: Answer) -> int:
    """Says whether the demo showed what it is to show."""
    failures = []
    if without.items <= BOUND:
        failures.append("the application without a lock did not race; try --requests 50")
    if locked.items != BOUND or locked.at_once != 1:
        failures.append("the lock did not hold")
    if answer.status != 201:
        failures.append("the lock of a killed worker was not freed")
    for failure in failures:
        console.print(f"[bold red]Not shown:[/] {failure}.")
    if not failures:
        console.print(
            "[bold green]The lock held.[/] The only difference is one line of demo/app.py:"
            ' [cyan]Depends(lock("create_item"))[/]'
        )
    return 1 if failures else 0


def _answer(answer: Answer) -> Text:
    return Text(f"{answer.status} {answer.text}", "green" if answer.status == 201 else "dim")


def _items(result: Run) -> Text:
    kept = result.items == BOUND
    said = "bound kept" if kept else "BOUND BROKEN"
    return Text(f"{result.items} of {BOUND}: {said}", "green" if kept else "red")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/demo", description=__doc__)
    parser.add_argument("--requests", type=_number(4, 500), default=12, help="how many (12)")
    parser.add_argument("--workers", type=_number(2, 32), default=4, help="processes (4)")
    parser.add_argument("--no-color", action="store_true", help="plain text")
    return parser.parse_args()


def _number(least: int, most: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        if not text.isdecimal() or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number from {least} to {most}")
        return int(text)

    return number


def _interrupt(*_: object) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())

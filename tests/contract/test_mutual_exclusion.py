"""At most one holds a key, whoever asks: threads, tasks and processes, all at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.waiting import PATIENCE

from .engines import Promises
from .history import Counter, fences_out_of_order, overlaps, read_journals
from .puppets import Worker

FLOWS = 8


@pytest.mark.promise("locks")
def test_thousands_of_sections_of_threads_tasks_and_processes(
    promises: Promises, url: str, tmp_path: Path
) -> None:
    """Of thousands of sections on one key none overlap, no update is lost, every fence is higher."""
    count = 4 if promises.processes else 1
    rounds = promises.sections // (count * 2 * FLOWS)
    workers = [
        Worker("sections", url, str(tmp_path), str(FLOWS), str(rounds)) for _ in range(count)
    ]
    try:
        for worker in workers:
            assert worker.hear() == "ready"
        for worker in workers:
            worker.say("go")
        done = sum(worker.hear(within=2 * PATIENCE)["done"] for worker in workers)
    finally:
        for worker in workers:
            worker.close()
    sections = read_journals(tmp_path)
    assert done == len(sections) == promises.sections
    assert Counter(tmp_path / "counter").read() == promises.sections
    assert overlaps(sections) == []
    assert fences_out_of_order(sections) == []

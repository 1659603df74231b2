"""An engine for each test, and the command line inside this process."""

from __future__ import annotations

import itertools
import json
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.support.waiting import PATIENCE
from weblock import Locks
from weblock.cli import doctor
from weblock.cli.app import app

_numbers = itertools.count()

Run = Callable[..., Result]


@pytest.fixture
def url(monkeypatch: pytest.MonkeyPatch) -> str:
    """An engine of this test's own, which commands find in the environment."""
    url = f"memory://cli-{next(_numbers)}"
    monkeypatch.setenv("WEBLOCK_URL", url)
    return url


@pytest.fixture
def locks(url: str) -> Iterator[Locks]:
    """The locks of the application that is looked at."""
    with Locks.from_url(url) as locks:
        yield locks


@pytest.fixture
def run(url: str) -> Iterator[Run]:
    """Runs a command in this process."""
    loggers = [logging.getLogger(name) for name in ("weblock", "kazoo")]
    levels = [logger.level for logger in loggers]

    def run(*arguments: str, **options: Any) -> Result:
        return CliRunner().invoke(app, arguments, prog_name="weblock", **options)

    yield run
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The doctor finds no engine slow, however busy this machine is."""
    monkeypatch.setattr(doctor, "SLOW", PATIENCE)


@pytest.fixture
def told(run: Run) -> Callable[..., Any]:
    """Runs a command with --json, and returns what it tells."""

    def told(*arguments: str, **options: Any) -> Any:
        done = run(*arguments, "--json", **options)
        return json.loads(done.stdout)

    return told

"""A Django project of the tests' own: on PostgreSQL, and on SQLite under the alias ``lite``.

pytest-django sets it up when the first test here is collected; the other tests never see Django.
"""

from __future__ import annotations

import atexit
import itertools
import os
from collections.abc import Callable, Iterator
from typing import Any

import django
import pytest
from django.db import connections

from tests.servers import Postgres
from weblock.contrib.django import async_locks, locks

from .requests import urls

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.contrib.django.project.settings")
django.setup()

_numbers = itertools.count()


@pytest.fixture(scope="session")
def django_db_modify_db_settings() -> None:
    """Starts the server when the first test asks for a database."""
    server = Postgres()
    atexit.register(server.close)
    for alias in ("default", "other"):
        connections.databases[alias]["PORT"] = server.port


@pytest.fixture(autouse=True)
def _locks_end_with_their_test() -> Iterator[None]:
    """Closes the locks that a test's settings made: an engine's thread would outlive its server."""
    yield
    for each in (locks, async_locks):
        each.close_where(lambda _engine: True)


@pytest.fixture
def url() -> str:
    """An engine of this test's own."""
    return f"memory://django-{next(_numbers)}"


@pytest.fixture
def serve(settings: Any, url: str) -> Callable[..., None]:
    """Has the project serve just these views, under an engine of this test's own."""
    settings.WEBLOCK = {"default": {"URL": url, "WAIT": 30}}

    def serve(**views: Any) -> None:
        settings.ROOT_URLCONF = urls(**views)

    return serve


@pytest.fixture
def database(monkeypatch: pytest.MonkeyPatch, transactional_db: None) -> Callable[..., None]:
    """Sets up databases as settings would, for connections that are opened from now on."""

    def set_up(*aliases: str, **given: Any) -> None:
        for alias in aliases or ("default",):
            connections[alias].close()
            for name, value in given.items():
                monkeypatch.setitem(connections.databases[alias], name, value)

    return set_up

"""A Django project of the tests' own: on PostgreSQL, and on SQLite under the alias ``lite``.

pytest-django sets it up when the first test here is collected; the other tests never see Django.
"""

from __future__ import annotations

import atexit
import itertools
import os

import django
import pytest
from django.db import connections

from tests.servers import Postgres

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


@pytest.fixture
def url() -> str:
    """An engine of this test's own."""
    return f"memory://django-{next(_numbers)}"

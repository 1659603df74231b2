"""``django://``: an engine in the project's own database, under Django's own commands."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.servers.postgres import shared_postgres

TOP = Path(__file__).parents[3]

TESTS = """
import asyncio
from django.test import TransactionTestCase
from weblock.contrib.django import async_locks, locks

class LockTests(TransactionTestCase):
    def test_locks(self):
        assert "/test_" in locks["default"].engine, locks["default"].engine
        with locks["default"].hold("key"):
            assert locks["default"].inspect("key")

    def test_async_locks(self):
        async def hold():
            async with async_locks["default"].hold("key"):
                assert await async_locks["default"].inspect("key")
        asyncio.run(hold())
"""


@pytest.fixture
def manage(tmp_path: Path) -> list[str]:
    server = shared_postgres()
    name = server.create_database(f"empty_{os.getpid()}_{tmp_path.name[-24:]}")
    database = {"ENGINE": "django.db.backends.postgresql", "NAME": name, "USER": "postgres"}
    database |= {"HOST": "127.0.0.1", "PORT": str(server.port)}
    (tmp_path / "shop_settings.py").write_text(
        "INSTALLED_APPS = ['weblock.contrib.django']\n"
        "WEBLOCK = {'default': {'URL': 'django://default?recovery=off'}}\n"
        f"DATABASES = {{'default': {database!r}}}\n"
        "from weblock.contrib.django import settings\n"
    )
    (tmp_path / "test_locks.py").write_text(TESTS)
    return [sys.executable, "-m", "django"]


def started(command: list[str], folder: Path) -> subprocess.Popen[str]:
    env = {"PYTHONPATH": f"{TOP}:{folder}", "DJANGO_SETTINGS_MODULE": "shop_settings"}
    return subprocess.Popen(
        command,
        cwd=folder,
        env={**os.environ, **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_a_test_run_drops_its_database(manage: list[str], tmp_path: Path) -> None:
    """``manage.py test`` uses the engine in the database of the tests, and no connection keeps that from being dropped."""
    run = started([*manage, "test", "--noinput"], tmp_path)
    said, _ = run.communicate()
    assert run.returncode == 0, said
    assert "Ran 2 tests" in said


def test_a_lock_protects_the_first_migration(manage: list[str], tmp_path: Path) -> None:
    """Two pods that migrate an empty database at once wait for each other: the table is not made by ``migrate``."""
    command = [*manage, "weblock", "run", "migrate", "--", "migrate"]
    pods = [started(command, tmp_path) for _ in range(2)]
    said = [pod.communicate()[0] for pod in pods]
    assert [pod.returncode for pod in pods] == [0, 0], said
    assert sum("Applying weblock.0001_initial" in each for each in said) == 1, said

"""Python without what only Unix has: file locks, Unix sockets, forks, ``poll`` and its clocks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.servers import fresh_url

TOP = Path(__file__).parents[2]
BARE = Path(__file__).parent / "bare"


def bare_python(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The end of a Python, all of whose children are such as well."""
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=TOP,
        env={**os.environ, "PYTHONPATH": str(BARE)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_what_is_taken_away_is_not_there() -> None:
    """The tests below run without each of the names, or they would prove nothing."""
    tries = [
        "import fcntl",
        "from os import register_at_fork",
        "from os import fork",
        "from socket import AF_UNIX",
        "from select import poll",
        "from time import CLOCK_BOOTTIME",
        "from time import CLOCK_MONOTONIC",
        "from time import clock_gettime",
    ]
    for each in tries:
        assert "ImportError" in bare_python("-c", each).stderr.replace("ModuleNotFound", "Import")


# The other tests are about the core, as on memory://, and about the server.
ON_A_SERVER = (
    "valkey and ("
    "not asyncio and (test_acquiring or test_holding or test_threads or test_several_keys)"
    " or not asyncio and test_faults and (killed or exclude or child)"
    " or asyncio and (test_acquiring or test_cancelling or test_holding))"
)


@pytest.mark.timeout(3600)  # Those inside have limits of their own.
@pytest.mark.parametrize(
    "chosen",
    [
        "memory",
        ON_A_SERVER,
    ],
    ids=["memory", "valkey"],
)
def test_the_contract_holds(chosen: str, tmp_path: Path) -> None:
    """All that these engines promise holds there too, but for what a fork is about."""
    # These take long, and an operating system has no part in them.
    chosen += " and not thousands_of_sections and not busy_holder and not test_interrupts"
    quiet = ("-q", "-p", "no:xdist", "-p", "no:cacheprovider", "-o", "timeout=600")
    # Where Python cannot tell who its user is, all users would share one folder.
    own = f"--basetemp={tmp_path / 'tests'}"
    done = bare_python("-m", "pytest", *quiet, own, "tests/contract", "-k", chosen)
    assert done.returncode == 0, done.stdout[-4000:]


@pytest.mark.parametrize("engine", ["memory", "redis"])
@pytest.mark.parametrize("framework", ["core", "fastapi", "django"])
def test_a_locked_handler(framework: str, engine: str) -> None:
    """Requests that need the same lock do not overlap there."""
    url = "memory://" if engine == "memory" else fresh_url()
    done = bare_python("-W", "error", "tests/smoke.py", framework, url)
    assert done.returncode == 0, done.stderr


def test_every_module_can_be_imported() -> None:
    """Nothing of the package needs what is not there just to be imported."""
    # Django's own modules need its settings; the locked handler above imports weblock's. Celery looks
    # at the name of the platform before it imports what only some have.
    program = """
import importlib, pkgutil, weblock
for module in pkgutil.walk_packages(weblock.__path__, "weblock."):
    if not {"django", "celery", "__main__"} & set(module.name.split(".")):
        importlib.import_module(module.name)
"""
    done = bare_python("-c", program)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("given", ["", "'file://'", "'file:///run/app/locks'"])
def test_the_engine_of_one_machine_names_the_others(given: str) -> None:
    """An engine that cannot work there says so in one sentence, with what to use instead."""
    done = bare_python("-c", f"import weblock; weblock.Locks.from_url({given})")
    assert done.stderr.splitlines()[-1] == (
        "weblock.errors.ConfigurationError: file://, the default engine, needs the file locks and"
        " named pipes of Linux, which Python does not have on this machine"
        f" ({sys.platform}): use redis://host for several processes, or memory:// for one"
        " [weblock.invalid_setting]"
    )


def test_a_redis_behind_a_unix_socket() -> None:
    """A URL that names a Unix socket says there that a host is needed."""
    done = bare_python("-c", "import weblock; weblock.Locks.from_url('unix:///run/redis.sock')")
    error = done.stderr.splitlines()[-1]
    assert "ConfigurationError: unix:///run/redis.sock needs Unix sockets" in error
    assert "use redis://host" in error

"""Each driver and framework is used in the releases that pyproject.toml names, and in no other."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

from weblock import ConfigurationError, Locks, _requirements

PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
EXTRAS = ["redis", "zookeeper", "memcached", "postgresql", "fastapi", "django", "flask"]
EXTRAS += ["litestar", "celery", "sqlalchemy", "cli", "otel"]

WANTED = {
    "redis": "redis://localhost",
    "kazoo": "zookeeper://localhost",
    "pymemcache": "memcached://localhost",
    "psycopg": "postgresql://localhost",
}
"""By the driver, the URL that needs it."""

IMPORTED = {
    "django": "weblock.contrib.django",
    "fastapi": "weblock.contrib.fastapi",
    "pydantic": "weblock.contrib.fastapi",
    "flask": "weblock.contrib.flask",
    "litestar": "weblock.contrib.litestar",
    "celery": "weblock.contrib.celery",
    "sqlalchemy": "weblock.contrib.sqlalchemy",
    "redis": "weblock.compat.redis",
}
"""By the package, the module that needs it."""


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Releases that are installed instead of those that are."""
    others: dict[str, str] = {}
    really = metadata.version
    monkeypatch.setattr(
        _requirements.metadata, "version", lambda package: others.get(package) or really(package)
    )
    return others


@pytest.mark.parametrize("extra", EXTRAS)
def test_the_code_knows_the_ranges_of_pyproject(extra: str) -> None:
    """The ranges that the code checks are those of the extra, each with a lower and an upper bound."""
    named = [
        re.match(r"([\w-]+)(?:\[.*\])?(.*)", each)
        for each in PROJECT["optional-dependencies"][extra]
    ]
    ranges = _requirements.ranges(extra)
    assert ranges == {each[1]: each[2] for each in named if each}
    assert all(re.fullmatch(r">=[\d.]+,<\d+", each) for each in ranges.values())


def test_all_extras_are_known() -> None:
    """Every extra for users is one of those that the tests here try."""
    assert set(PROJECT["optional-dependencies"]) - {"all"} == set(EXTRAS)


@pytest.mark.parametrize("extra", EXTRAS)
def test_what_is_installed_here_fits(extra: str) -> None:
    """The releases that this suite runs with are inside the ranges."""
    _requirements.require("the suite", extra)


@pytest.mark.parametrize(
    ("package", "release"),
    [
        ("redis", "4.6.0"),
        ("redis", "9.0.0b1"),
        ("kazoo", "2.9.0"),
        ("kazoo", "3.0.0"),
        ("pymemcache", "3.5.2"),
        ("pymemcache", "5.0.0"),
    ],
)
def test_a_driver_out_of_range_is_refused_with_both_releases(
    package: str, release: str, installed: dict[str, str]
) -> None:
    """A driver that is too old or too new is one clear error, which names what is there and what is wanted."""
    installed[package] = release
    with pytest.raises(ConfigurationError) as caught:
        Locks.from_url(WANTED[package])
    message = str(caught.value)
    assert message.startswith(f"{WANTED[package]} needs {package}>=")
    assert f"{package} {release} is installed" in message
    assert "pip install 'pyweblock[" in message


def test_a_quorum_and_a_client_are_refused_too(installed: dict[str, str]) -> None:
    """A driver out of range is refused by whichever door one comes in."""
    import redis

    installed["redis"] = "4.6.0"
    urls = [f"redis://localhost:{port}" for port in (1, 2, 3)]
    with pytest.raises(
        ConfigurationError, match=r"a quorum of .* redis>=5\.0\.1,<9, but redis 4\.6\.0"
    ):
        Locks.from_url(urls)
    with pytest.raises(
        ConfigurationError, match=r"redis>=5\.0\.1,<9, but redis 4\.6\.0 is installed"
    ):
        Locks.from_client(redis.Redis())


@pytest.mark.parametrize(("package", "module"), IMPORTED.items())
@pytest.mark.parametrize("release", ["0.9", "99.0"])
def test_an_adapter_out_of_range_is_refused_at_its_import(
    package: str, module: str, release: str
) -> None:
    """The import of an adapter says which release of its framework is there, and which are wanted."""
    code = f"""
from importlib import metadata
really = metadata.version
metadata.version = lambda package: {release!r} if package == {package!r} else really(package)
import {module}
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    *_, message = done.stderr.splitlines()
    assert f"ConfigurationError: {module} needs {package}>=" in message
    assert f"{package} {release} is installed" in message
    assert ("use AsyncLocks and weblock.contrib.asgi" in message) == ("fastapi" in module)


@pytest.mark.parametrize("package", ["hiredis", *WANTED])
def test_a_missing_driver_is_named_with_the_remedy(
    package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without its driver an engine says what to install."""
    monkeypatch.setitem(sys.modules, package, None)
    url = WANTED.get(package, WANTED["redis"])
    with pytest.raises(
        ConfigurationError, match=rf"{package}>=.* is not installed\. Run: pip install"
    ):
        Locks.from_url(url)


@pytest.mark.parametrize(
    ("release", "within"),
    [
        ("4.9.9", False),
        ("5", True),
        ("5.0", True),
        ("5.0.0rc1", True),
        ("8.1.0+local", True),
        ("8.99.1", True),
        ("9", False),
        ("9.0.0b1", False),
        ("10.0", False),
    ],
)
def test_releases_are_compared_by_their_numbers(release: str, within: bool) -> None:
    """The bounds hold by numbers, whatever a release is called, and a beta counts as its release."""
    assert _requirements._within(release, ">=5,<9") is within


def test_a_copy_of_the_source_has_no_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where weblock is not installed, only copied, nothing is known of ranges and nothing is refused."""

    def missing(name: str) -> list[str]:
        raise metadata.PackageNotFoundError(name)

    module = importlib.reload(_requirements)
    monkeypatch.setattr(module.metadata, "requires", missing)
    try:
        module.require("redis://localhost", "redis")
    finally:
        module.ranges.cache_clear()

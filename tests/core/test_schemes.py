"""Which engine a URL names, and what is imported to open it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from weblock.stores.redis.settings import SCHEMES
from weblock.stores.url import ENGINES, engine_for, forget

IMPORTED = """
import sys, weblock
{code}
print(*sorted(name.split(".")[2] for name in sys.modules if name.startswith("weblock.stores.")))
"""


def imported_by(code: str) -> set[str]:
    """The modules of engines, and what they share, that a new process imports to run some code."""
    command = [sys.executable, "-c", IMPORTED.format(code=code)]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return set(printed.split()) & {*ENGINES.values(), "quorum"}


@pytest.mark.parametrize(
    ("code", "engines"),
    [
        ("weblock.Locks.from_url('memory://')", {"memory"}),
        ("weblock.Locks.from_url('redis://localhost')", {"redis"}),
        ("weblock.Locks.from_url([f'redis://{n}' for n in 'abc'])", {"redis", "quorum"}),
        ("import redis; weblock.Locks.from_client(redis.Redis())", {"redis"}),
        ("try: weblock.Locks.from_url('nosuch://')\nexcept ValueError: pass", set()),
        ("try: weblock.Locks.from_client({})\nexcept ValueError: pass", set()),
    ],
)
def test_only_the_engine_that_is_named_is_imported(code: str, engines: set[str]) -> None:
    """An application pays for, and depends on, no engine but its own."""
    assert imported_by(code) == engines


def test_every_scheme_opens_its_engine() -> None:
    """The list names a module for each scheme, and each module knows all schemes it is named for."""
    assert {scheme for scheme, module in ENGINES.items() if module == "redis"} == set(SCHEMES)
    rest = {"unix": "/run/x.sock", "redis+sentinel": "h/name", "rediss+sentinel": "h/name"}
    for scheme in ENGINES.keys() - {"file"}:
        engine = engine_for(f"{scheme}://{rest.get(scheme, 'h')}")
        assert type(engine).__module__.startswith(f"weblock.stores.{ENGINES[scheme]}")
        forget(engine)
        engine.close()

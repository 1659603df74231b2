"""What the tests of the core are made of."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

CORE = Path(__file__).parent
TOP = CORE.parents[1]

WAITING = TOP / "tests/support/waiting.py"
TOKENS = TOP / "tests/support/tokens.py"
"""The two helpers of other tests that tests of the core can use: they need nothing but weblock."""

OTHERS = {"pytest", "hypothesis", "lupa", "hiredis", "redis", "kazoo"}
"""The tools, and what the simulated servers are made of: Lua, the protocol, and the drivers' errors and states."""


def imported(file: Path) -> Iterator[str]:
    """The full names of the modules that a file imports, wherever in the file that stands."""
    package = file.relative_to(TOP).parts[:-1]
    for node in ast.walk(ast.parse(file.read_text())):
        match node:
            case ast.Import(names=names):
                yield from (each.name for each in names)
            case ast.ImportFrom(module=module, level=level):
                base = package[: len(package) - level + 1] if level else ()
                yield ".".join([*base, *filter(None, [module])])


@pytest.mark.parametrize(
    "file", [WAITING, TOKENS, *sorted(CORE.rglob("*.py"))], ids=lambda file: file.stem
)
def test_the_core_is_tested_with_nothing_but_the_simulator(file: Path) -> None:
    """No test of the core needs a server, a framework, or what tests of these use."""
    foreign = {
        name
        for name in imported(file)
        if name.split(".")[0] not in OTHERS | sys.stdlib_module_names | {"weblock"}
        and not f"{name}.".startswith("tests.core.")
        and name not in {"tests.support.tokens", "tests.support.waiting"}
    }
    assert not foreign, f"{file.relative_to(TOP)} imports {', '.join(sorted(foreign))}"

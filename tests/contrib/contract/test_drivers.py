"""Each framework has a driver, each promise a test, and the page of guarantees says what they say."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from .conftest import drivers
from .promises import PROMISES

TOP = Path(__file__).parents[3]
CONTRIB = TOP / "src/weblock/contrib"

NO_FRAMEWORKS = {
    "kit": "what adapters are made of",
    "otel": "observes events",
    "sqlalchemy": "sessions, of whatever framework",
    "status": "an application of its own",
}
"""The folders of ``contrib`` that lock nothing by themselves."""

TABLE = re.compile(r"<!-- adapters -->\n(.*?)<!-- end of adapters -->", re.DOTALL)


def table() -> str:
    reasons: list[str] = []
    lines = [
        f"| promise | {' | '.join(each.name for each in drivers())} |",
        f"| --- |{' --- |' * len(drivers())}",
    ]
    for promise in PROMISES:
        cells = []
        for each in drivers():
            reason = each.exempt.get(promise)
            if reason and reason not in reasons:
                reasons.append(reason)
            cells.append(f"({reasons.index(reason) + 1})" if reason else "yes")
        lines.append(f"| {promise} | {' | '.join(cells)} |")
    notes = [f"{number}. {reason}." for number, reason in enumerate(reasons, start=1)]
    return "\n" + "\n".join([*lines, "", *notes]) + "\n\n"


def test_the_page_has_the_table_that_the_drivers_make() -> None:
    """Whoever changes a driver changes the page: ``python -m tests.contrib.contract.test_drivers``."""
    found = TABLE.search((TOP / "docs/guarantees.md").read_text())
    assert found
    assert found[1] == table()


def test_each_framework_has_a_driver() -> None:
    """A folder in ``contrib`` without one is an adapter whose promises nothing checks."""
    folders = {path.parent.name for path in CONTRIB.glob("*/__init__.py")}
    assert folders == {each.folder for each in drivers()} | NO_FRAMEWORKS.keys()


def test_each_promise_has_a_test() -> None:
    """No row of the table is without one, and no exemption is from a promise that does not exist."""
    shown: set[str] = set()
    for path in Path(__file__).parent.glob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "shows":
                shown.add(ast.unparse(node.args[0]))
    from . import promises

    assert {getattr(promises, name) for name in shown} == PROMISES.keys()
    assert all(each.exempt.keys() <= PROMISES.keys() for each in drivers())


@pytest.mark.parametrize("driver", drivers(), ids=lambda each: each.name)
def test_an_exemption_has_a_reason(driver) -> None:
    """It is a sentence without its full stop, which the page adds."""
    assert all(reason[0].isupper() and reason[-1] != "." for reason in driver.exempt.values())


if __name__ == "__main__":
    page = TOP / "docs/guarantees.md"
    text = page.read_text()
    page.write_text(TABLE.sub(f"<!-- adapters -->\n{table()}<!-- end of adapters -->", text))

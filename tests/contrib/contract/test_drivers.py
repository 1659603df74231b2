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
    """The promises, and the adapters to which each does not apply, with numbers of the reasons."""
    reasons: list[str] = []
    lines = ["| guarantee | does not apply to |", "| --- | --- |"]
    for promise in PROMISES:
        excepted: dict[str, list[str]] = {}
        for each in drivers():
            if reason := each.exempt.get(promise):
                excepted.setdefault(reason, []).append(each.name)
        reasons += [reason for reason in excepted if reason not in reasons]
        cell = "; ".join(
            f"{', '.join(names)} ({reasons.index(reason) + 1})"
            for reason, names in excepted.items()
        )
        lines.append(f"| {promise} | {cell} |")
    notes = [f"{number}. {reason}." for number, reason in enumerate(reasons, start=1)]
    adapters = f"Adapters: {', '.join(each.name for each in drivers())}."
    return "\n" + "\n".join([adapters, "", *lines, "", *notes]) + "\n\n"


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

from __future__ import annotations

import subprocess
import sys

WITHOUT = """
import sys
sys.modules["django"] = sys.modules["pytest"] = None  # As if they were not installed.
from weblock.testing import assert_serialized, assert_serialized_async
"""


def test_neither_django_nor_pytest_is_needed() -> None:
    """The helpers for any code can be imported where neither Django nor pytest is installed."""
    subprocess.run([sys.executable, "-c", WITHOUT], check=True)


def test_the_plugin_imports_no_framework() -> None:
    """What pytest imports of weblock in every project brings no framework with it."""
    code = "import sys, weblock.testing.pytest_plugin as _; print(*sys.modules)"
    loaded = subprocess.check_output([sys.executable, "-c", code], text=True).split()
    assert not {"django", "fastapi", "redis", "starlette"} & set(loaded)

"""All private names of Django that weblock uses; ``tests/test_private_names.py`` notices when one goes away."""

from __future__ import annotations

from typing import Any


def is_of_test_case(block: Any) -> bool:
    """Whether an open ``atomic`` block is the one that ``TestCase`` puts around each test."""
    return bool(block._from_testcase)  # noqa: SLF001


def close_together(response: Any, former: Any) -> None:
    """Have ``response`` close, along with itself, what a response would have closed that it replaces.

    ``former.close()`` would do it too early, and tell all receivers of ``request_finished`` once more.
    """
    response._resource_closers.extend(former._resource_closers)  # noqa: SLF001

"""All private names of Django and django-ninja that weblock uses.

``tests/contrib/django/test_private_names.py`` notices when one goes away.
"""

from __future__ import annotations

from typing import Any

from django.utils.functional import LazyObject


def is_of_test_case(block: Any) -> bool:
    """Return whether an open ``atomic`` block is the one that ``TestCase`` opens for each test."""
    return bool(block._from_testcase)  # noqa: SLF001


def stands_for(value: object) -> object:
    """Return what a lazy object stands for, or ``empty`` if nothing has read it yet.

    Everything public about it would read it, or copy what it stands for.
    """
    while isinstance(value, LazyObject):  # By its own type, so that it is not read.
        value = value._wrapped  # noqa: SLF001
    return value


def close_together(response: Any, former: Any) -> None:
    """Have ``response`` close, along with itself, what a response would have closed that it replaces.

    ``former.close()`` would do it too early, and tell all receivers of ``request_finished`` once more.
    """
    response._resource_closers.extend(former._resource_closers)  # noqa: SLF001


def is_ninja_operation(view: Any) -> bool:
    """Return whether django-ninja has registered a function as an operation."""
    return hasattr(view, "_ninja_operation")

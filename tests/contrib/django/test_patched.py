"""What weblock changes in Django's objects: each test fails when Django may have a hook for it.

docs/dev/architecture.md lists the patches, and tests/contrib/test_patched.py is about other packages.
"""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection, transaction
from django.db.backends import signals

from .project.shop.models import Item


@pytest.mark.django_db(transaction=True)
def test_django_has_no_hook_before_commit() -> None:
    """``execute_wrappers`` do not see the COMMIT of ``atomic``, and ``on_commit`` comes after it."""
    seen: list[str] = []
    committed: list[bool] = []

    def note(execute: Any, sql: str, *given: Any) -> Any:
        seen.append(sql.partition(" ")[0])
        return execute(sql, *given)

    with connection.execute_wrapper(note), transaction.atomic():
        Item.objects.create()
        transaction.on_commit(lambda: committed.append(connection.get_autocommit()))
    assert seen == ["INSERT"]
    assert committed == [True]
    assert [name for name in vars(signals) if name.islower() and "__" not in name] == [
        "connection_created"
    ]


@pytest.mark.django_db(transaction=True)
def test_django_has_no_hook_after_rollback() -> None:
    """``execute_wrappers`` do not see the ROLLBACK of ``atomic``, and ``on_commit`` drops what it has."""
    seen: list[str] = []

    def note(execute: Any, sql: str, *given: Any) -> Any:
        seen.append(sql.partition(" ")[0])
        return execute(sql, *given)

    with connection.execute_wrapper(note), transaction.atomic():
        Item.objects.create()
        transaction.on_commit(lambda: seen.append("hook"))
        transaction.set_rollback(True)
    assert seen == ["INSERT"]
    assert [name for name in dir(transaction) if name.startswith("on_")] == ["on_commit"]

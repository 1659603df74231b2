"""The private name of Celery that weblock uses: ``tests/contrib/test_patched.py`` notices when it goes away."""

from __future__ import annotations

from celery import Celery
from celery.app.registry import TaskRegistry


def registry_of(app: Celery) -> TaskRegistry:
    """Return the tasks that an application has so far.

    ``app.tasks`` finalizes the application, and with it the order in which its tasks are made.
    """
    return app._tasks  # noqa: SLF001

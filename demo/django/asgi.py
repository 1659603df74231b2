"""The application, as a server of any make runs it."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

from django.core.asgi import get_asgi_application
from django.core.management import call_command

from weblock.contrib.django import locks

os.environ["DJANGO_SETTINGS_MODULE"] = "demo.django.settings"  # Whatever the shell says.
application = get_asgi_application()


def migrate() -> None:
    """Makes the table, one worker at a time: the others find that there is nothing to do."""
    with locks["default"].hold("migrate", wait=60):
        call_command("migrate", run_syncdb=True, verbosity=0)


# In a thread: the server's event loop runs already, where Django refuses to use a database.
with ThreadPoolExecutor(1) as thread:
    thread.submit(migrate).result()

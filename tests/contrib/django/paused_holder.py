"""A process that holds a lock, is stopped, and writes when it wakes up: naively, and fenced.

``python -m tests.contrib.django.paused_holder ENGINE PORT DATABASE ACCOUNT``
"""

from __future__ import annotations

import os
import sys

import django
from django.db import connections

from weblock import Locks


def main(engine: str, port: str, database: str, account: str) -> None:
    """Says that it holds, and when it has read a line, what became of its writes."""
    os.environ["DJANGO_SETTINGS_MODULE"] = "tests.contrib.django.project.settings"
    django.setup()
    connections.databases["default"].update(PORT=int(port), NAME=database)

    from weblock.contrib.django.fencing import StaleFence

    from .project.ledger.models import Account

    rows = Account.objects.filter(pk=account)
    lease = Locks.from_url(engine).acquire("account", ttl=0.5)
    say("holds")
    sys.stdin.readline()
    say(f"naive: {rows.update(balance=-1)}")
    try:
        rows.fenced_update(lease, balance=-2)
    except StaleFence as error:
        say(f"fenced: {error}")


def say(line: str) -> None:
    """Tells the test."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])

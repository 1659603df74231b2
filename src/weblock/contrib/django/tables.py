"""``manage.py migrate`` creates the table of ``django://alias``."""

from __future__ import annotations

from django.db import connections, router, transaction

from .settings import engines_in


def create_tables(*, using: str, **_signal: object) -> None:
    """Create the tables of the engines that ``WEBLOCK`` keeps in a database, unless they exist.

    It follows every ``migrate`` rather than being a migration, which would be applied only once: a
    project may name the database, or another table in it, at any later time.
    """
    if not router.allow_migrate(using, "weblock", model_name="lease"):
        return
    for url in engines_in(using):
        _create(using, url)


def _create(using: str, url: str) -> None:
    from ...stores.postgresql import open_engine

    engine = open_engine(url)  # It never connects: Django executes the statements.
    with transaction.atomic(using), connections[using].cursor() as cursor:
        cursor.execute("SELECT to_regclass(%s)", [engine.settings.table])
        if cursor.fetchone() == (None,):
            cursor.execute(engine.ddl)

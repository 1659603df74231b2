"""The application ``weblock.contrib.django``, for ``INSTALLED_APPS``."""

from __future__ import annotations

from typing import Any

from django.apps import AppConfig
from django.core.checks import Tags, register
from django.db import connections, transaction
from django.db.models.signals import post_migrate


class WeblockConfig(AppConfig):
    """Its label is ``weblock``, not the last part of its name, which is ``django``."""

    name = "weblock.contrib.django"
    label = "weblock"
    verbose_name = "Locks"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Register the checks of the settings, the middleware and the views, and what follows ``migrate``."""
        from . import checks

        register(checks.check_settings, "weblock")
        register(checks.check_deployment, "weblock", deploy=True)
        register(checks.check_middleware, "weblock", Tags.urls)
        register(checks.check_views, "weblock", Tags.urls)
        register(checks.check_guard, "weblock", Tags.database)
        post_migrate.connect(create_tables, sender=self)


def create_tables(*, using: str, **_signal: object) -> None:
    """Create the tables of the engines that ``WEBLOCK`` keeps in a database, unless they exist or have ``create=false``.

    It follows every ``migrate`` rather than being a migration, which would be applied only once: a
    project may name the database, or another table in it, at any later time. The engine would create it,
    too, but its user may lack the right.
    """
    from ...stores.url import open_engine
    from .settings import engines_in

    for url in engines_in(using):
        engine: Any = open_engine(url)  # It never connects: Django executes the statements.
        if engine.settings.create:
            with transaction.atomic(using), connections[using].cursor() as cursor:
                cursor.execute("SELECT to_regclass(%s)", [engine.table])
                if cursor.fetchone() == (None,):
                    cursor.execute(engine.ddl())

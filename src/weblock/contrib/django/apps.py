"""The application: ``INSTALLED_APPS += ["weblock.contrib.django"]``."""

from django.apps import AppConfig
from django.core.checks import Tags, register
from django.db.models.signals import post_migrate


class WeblockConfig(AppConfig):
    """Its label is ``weblock``, not the last part of its name, which is ``django``."""

    name = "weblock.contrib.django"
    label = "weblock"
    verbose_name = "Locks"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Register the checks of the settings, the middleware and the views, and what follows ``migrate``."""
        from . import checks, tables

        register(checks.check_settings, "weblock")
        register(checks.check_middleware, "weblock")
        register(checks.check_views, "weblock", Tags.urls)
        register(checks.check_rules, "weblock", Tags.urls)
        register(checks.check_guard, "weblock", Tags.database)
        post_migrate.connect(tables.create_tables, sender=self)

"""The application: ``INSTALLED_APPS += ["weblock.contrib.django"]``."""

from django.apps import AppConfig


class WeblockConfig(AppConfig):
    """Its label is ``weblock``, not the last part of its name, which is ``django``."""

    name = "weblock.contrib.django"
    label = "weblock"
    verbose_name = "Locks"
    default_auto_field = "django.db.models.BigAutoField"

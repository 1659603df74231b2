"""Permissions, and no table."""

from typing import Any, ClassVar

from django.db import migrations, models


class Migration(migrations.Migration):  # type: ignore[misc,name-defined] # they are lazy there
    """The model that stands for the admin's page."""

    initial = True

    operations: ClassVar[list[Any]] = [
        migrations.CreateModel(
            name="Lock",
            fields=[("key", models.CharField(max_length=600, primary_key=True, serialize=False))],
            options={
                "managed": False,
                "default_permissions": ("view",),
                "permissions": (("release_lock", "Can release lock by force"),),
            },
        ),
    ]

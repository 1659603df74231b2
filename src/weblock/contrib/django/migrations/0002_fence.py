"""The table of ``"GUARD": "database"``."""

from typing import Any, ClassVar

from django.db import migrations, models


class Migration(migrations.Migration):  # type: ignore[misc,name-defined] # they are lazy there
    """One small row for each key that was used within the last day."""

    dependencies: ClassVar[list[Any]] = [("weblock", "0001_initial")]

    operations: ClassVar[list[Any]] = [
        migrations.CreateModel(
            name="Fence",
            fields=[
                (
                    "digest",
                    models.CharField(
                        editable=False, max_length=64, primary_key=True, serialize=False
                    ),
                ),
                ("lock_key", models.CharField(editable=False, max_length=600, verbose_name="key")),
                ("fence", models.BigIntegerField(editable=False)),
                ("token", models.CharField(editable=False, max_length=32)),
                ("raised_at", models.DateTimeField(editable=False, verbose_name="since")),
            ],
            options={"db_table": "weblock_fence", "default_permissions": ("view",)},
        ),
    ]

"""Permissions for the page in the admin, and the tables of ``"GUARD": "database"`` and ``@idempotent``."""

from typing import Any, ClassVar

from django.db import migrations, models


class Migration(migrations.Migration):  # type: ignore[misc,name-defined] # they are lazy there
    """The model that stands for the page, without a table; and one small row for each key of a day."""

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
        migrations.CreateModel(
            name="Answer",
            fields=[
                (
                    "digest",
                    models.CharField(
                        editable=False, max_length=64, primary_key=True, serialize=False
                    ),
                ),
                ("caller", models.CharField(db_index=True, editable=False, max_length=64)),
                ("idempotency_key", models.CharField(editable=False, max_length=255)),
                ("request", models.CharField(editable=False, max_length=600)),
                ("fingerprint", models.CharField(editable=False, max_length=64)),
                ("status", models.IntegerField(editable=False)),
                ("headers", models.TextField(editable=False)),
                ("body", models.BinaryField()),
                ("expires_at", models.BigIntegerField(db_index=True, editable=False)),
            ],
            options={"db_table": "weblock_answer", "default_permissions": ("view",)},
        ),
    ]

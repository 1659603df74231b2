"""What there may be three of."""

from __future__ import annotations

from django.db import models


class Item(models.Model):
    """An item."""

    objects = models.Manager()

    class Meta:
        """The table has the name that the demo looks for."""

        db_table = "item"

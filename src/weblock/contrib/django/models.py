"""A model without a table: it gives Django's admin a page, and permissions for it."""

from __future__ import annotations

from django.db import models


class Lock(models.Model):
    """A key that somebody holds or waits for. The engine knows them; no database does."""

    key = models.CharField(max_length=600, primary_key=True)

    class Meta:
        """It is never queried."""

        managed = False
        default_permissions = ("view",)
        permissions = (("release_lock", "Can release lock by force"),)

    def __str__(self) -> str:
        return str(self.key)

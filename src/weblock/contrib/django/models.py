"""The models that Django's admin shows: keys, which only engines have, and the table of fences."""

from __future__ import annotations

from django.db import models

from ..kit.guarding import LENGTHS, TABLE


class Lock(models.Model):
    """A key that has a holder or waiters. The engine knows them; no database does."""

    key = models.CharField(max_length=600, primary_key=True)

    class Meta:
        """It is never queried."""

        managed = False
        default_permissions = ("view",)
        permissions = (("release_lock", "Can release lock by force"),)

    def __str__(self) -> str:
        return str(self.key)


class Fence(models.Model):
    """The fence of the section of a key that began last, by which the database refuses older ones.

    Only sections under ``"GUARD": "database"`` write it.
    """

    digest = models.CharField(max_length=LENGTHS["digest"], primary_key=True, editable=False)
    lock_key = models.CharField("key", max_length=LENGTHS["lock_key"], editable=False)
    fence = models.BigIntegerField(editable=False)
    token = models.CharField(max_length=LENGTHS["token"], editable=False)
    raised_at = models.DateTimeField("since", editable=False)

    class Meta:
        """Other frameworks that use the database know it by its name."""

        db_table = TABLE
        default_permissions = ("view",)

    def __str__(self) -> str:
        return str(self.lock_key)

"""The models that Django's admin shows, and the tables of fences and of stored answers."""

from __future__ import annotations

from django.db import models

from ..kit.idempotency import ANSWER_LENGTHS, ANSWERS
from ..kit.sql import LENGTHS, TABLE


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


class Answer(models.Model):
    """The answer to a request that ``@idempotent`` has executed: see ``contrib.kit.idempotency``."""

    digest = models.CharField(max_length=ANSWER_LENGTHS["digest"], primary_key=True, editable=False)
    caller = models.CharField(max_length=ANSWER_LENGTHS["caller"], db_index=True, editable=False)
    idempotency_key = models.CharField(max_length=ANSWER_LENGTHS["idempotency_key"], editable=False)
    request = models.CharField(max_length=ANSWER_LENGTHS["request"], editable=False)
    fingerprint = models.CharField(max_length=ANSWER_LENGTHS["fingerprint"], editable=False)
    status = models.IntegerField(editable=False)
    headers = models.TextField(editable=False)
    body = models.BinaryField()
    expires_at = models.BigIntegerField(db_index=True, editable=False)

    class Meta:
        """Other frameworks that use the database know it by its name."""

        db_table = ANSWERS
        default_permissions = ("view",)

    def __str__(self) -> str:
        return str(self.request)

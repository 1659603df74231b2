"""Rows that refuse the write of a holder that slept through its lease.

A lease ends by time. A holder that was paused (a machine that swapped, a container that was frozen) may
wake up after it, and write what it had in mind. No lock can prevent that; the row can, if it knows the
fence of its last writer.
"""

from __future__ import annotations

from typing import Any, Self

from asgiref.sync import sync_to_async
from django.db import models, transaction
from django.db.models import F

from ..._face import BaseLease
from ...errors import ConfigurationError, LeaseLost

FENCE = "fence"


class StaleFence(LeaseLost):
    """A write was refused, because a holder with a larger fence has written since.

    ``newest`` is the largest fence among the rows that refused.
    """

    def __init__(self, key: str, *, fence: int, newest: int) -> None:
        super().__init__(key, fence=fence, reason=f"fence {newest} has written since")
        self.newest = newest


class FenceField(models.BigIntegerField):
    """The fence of the row's last writer; 0 if none had a fence.

    Only ``fenced_update`` changes it: a plain ``save`` leaves it as it is in the database, so an object
    that was loaded long ago does not turn it back.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **{"default": 0, "editable": False, **options})

    def pre_save(self, model_instance: models.Model, add: bool) -> Any:  # noqa: FBT001 - Django's
        """Return 0 for a new row, else the value that the row has."""
        return super().pre_save(model_instance, add) if add else F(self.attname)


class FencedQuerySet(models.QuerySet):
    """Rows of a model that has a ``fence``."""

    def fenced_update(self, fence: BaseLease | int | None, **values: Any) -> int:
        """Update the rows, unless a newer holder has written one, and return how many there were.

        ``fence`` is the lease of one key, or a fence: of a lease of several keys, ``lease.fences[key]``.
        Without values it only puts the fence into the rows, which is how a transaction that will
        insert something is fenced: by a row that stands for the whole, before it looks.

        One ``UPDATE`` decides, so nobody comes in between. If any of the rows has a larger fence,
        raises ``StaleFence`` and updates none: a transaction around it can only be rolled back.

        Raises ``ConfigurationError`` if the lease is of several keys, or has no fence.
        """
        number = _number(fence)
        self._refuse_other_tables(values)
        # The router's choice for writing; nothing is asked.
        rows = self.using(self.select_for_update().db)
        # Without a savepoint, so that code that swallows the error cannot commit the rest.
        with transaction.atomic(using=self.db, savepoint=False):
            written = self._not_newer_than(number, rows).update(**{**values, FENCE: number})
            newest = rows.filter(fence__gt=number).aggregate(newest=models.Max(FENCE))["newest"]
            if newest is not None:
                key = fence.key if isinstance(fence, BaseLease) else self._meta.label
                raise StaleFence(key, fence=number, newest=newest)
        return int(written)

    async def afenced_update(self, fence: BaseLease | int | None, **values: Any) -> int:
        """Do what ``fenced_update`` does, in async code."""
        return await sync_to_async(self.fenced_update)(fence, **values)

    # No template may call them.
    fenced_update.alters_data = True  # type: ignore[attr-defined]
    afenced_update.alters_data = True  # type: ignore[attr-defined]

    @property
    def _meta(self) -> Any:
        return self.model._meta  # noqa: SLF001 - so Django calls a public API

    def _not_newer_than(self, fence: int, rows: Self) -> Any:
        """Return the rows that the holder of ``fence`` may write."""
        allowed = rows.filter(fence__lte=fence)
        if allowed.query.count_active_tables() == 1:
            return allowed
        # Django puts a filter over several tables into a subquery. A database that waited for another
        # writer looks again at the row itself, but not into subqueries: the fence must stand outside.
        all_rows = self._meta.base_manager.using(rows.db)
        return all_rows.filter(pk__in=allowed.values("pk"), fence__lte=fence)

    def _refuse_other_tables(self, values: dict[str, Any]) -> None:
        """Reject columns that are inherited from another table: they need another statement."""
        for name in (FENCE, *values):
            home = self._meta.get_field(name).model._meta  # noqa: SLF001 - as above
            if home.concrete_model is not self._meta.concrete_model:
                raise ConfigurationError(
                    f"{self._meta.label}.{name} is a column of another table, that of {home.label}:"
                    f" one statement cannot write it and the fence; update {home.label}"
                )


def _number(fence: BaseLease | int | None) -> int:
    number = _fence_of(fence) if isinstance(fence, BaseLease) else fence
    if number is None:
        raise ConfigurationError(
            "there is no fence, because the section runs without a lease (on_unavailable): a write that"
            " is to be refused when it is stale needs one"
        )
    return number


def _fence_of(lease: BaseLease) -> int | None:
    if len(lease.keys) == 1:
        return lease.fence
    # Fences of different keys cannot be compared: that of another key than the row's says nothing.
    raise ConfigurationError(
        f"this lease has a fence for each of its keys, {' and '.join(map(repr, lease.keys))}: pass"
        f" that of the key that the rows are written under, such as lease.fences[{lease.key!r}]"
    )


class FencedModel(models.Model):
    """A model whose rows know the fence of their last writer: ``objects.filter(...).fenced_update``."""

    fence = FenceField()

    objects = models.Manager.from_queryset(FencedQuerySet)()

    class Meta:
        """It has no table of its own."""

        abstract = True

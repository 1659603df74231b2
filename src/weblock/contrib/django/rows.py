"""Rows that were read before the lock.

A request has often read rows before it holds its lock: ``LoginRequiredMiddleware`` reads the user, a key
function reads ``request.user``, and a decorator reads the object that it passes to the view. While the
request waits, the holder changes these rows. So once the lock is held, each row that the view can reach is
read again: what is on the request, what the view is called with, and what its instance keeps. A row is read
again in place, because it may carry what no query returns, such as the device of a two-factor login.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.core.exceptions import PermissionDenied
from django.db import router
from django.db.models import Model
from django.utils.functional import LazyObject

from .internals import stands_for


def kept_rows(values: Iterable[object]) -> list[Model]:
    """Return the stored rows among the values, each once; a lazy row only if it has been read already."""
    found: dict[int, Model] = {}
    for each in values:
        value = stands_for(each) if isinstance(each, LazyObject) else each  # Most are not lazy.
        if isinstance(value, Model) and not value._state.adding:  # noqa: SLF001 - Django documents it
            found[id(value)] = value
    return list(found.values())


def read_again(rows: Iterable[Model]) -> None:
    """Read the rows again, in place, from the database that is written.

    Raises ``PermissionDenied``, which is answered with 403, if one of them is gone.
    """
    for row in rows:
        model: Any = type(row)
        try:
            row.refresh_from_db(using=router.db_for_write(model, instance=row))
        except model.DoesNotExist as error:
            raise PermissionDenied(
                f"the {model.__name__} {row.pk!r} was deleted while the request waited for its lock"
            ) from error

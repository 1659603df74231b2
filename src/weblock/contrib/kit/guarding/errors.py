"""The errors of a guarded section."""

from __future__ import annotations

from ....errors import LeaseLost, LockTimeout


class StaleFence(LeaseLost):
    """The database refused a holder, because another with a larger fence has come since.

    ``newest`` is the larger fence; ``None`` if the database no longer knows of this holder.
    """

    def __init__(self, key: str, *, fence: int, newest: int | None) -> None:
        if newest is None:
            reason = "the database has no record of it: its row was deleted, or the search_path has changed"
        else:
            reason = f"fence {newest} has begun since"
        super().__init__(key, fence=fence, reason=reason)
        self.newest = newest


class FenceLocked(LockTimeout):
    """The lock was acquired, but a former holder's transaction is still open and was checked.

    Such a holder was stopped between its check and its COMMIT. Its work may yet be committed, so
    nothing may begin before: the database was waited for, up to the guard's limit.
    """

    def __init__(self, key: str, *, wait: float) -> None:
        super().__init__(key, wait=wait)
        self.args = (
            (
                f"lock {key!r} was acquired, but a former holder's transaction in the database has not"
                f" ended within {wait:g} s: its process may have been stopped just before its COMMIT."
                " Retry later, or end that session in the database"
            ),
        )

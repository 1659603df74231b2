"""SQLAlchemy: no commit without the lease that it was made under."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .._requirements import require

require("weblock.contrib.sqlalchemy", "sqlalchemy")

from sqlalchemy import event  # noqa: E402 - only what fits can be imported

from .._face import BaseLease  # noqa: E402

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncSession
    from sqlalchemy.orm import Session


def guard(session: Session | AsyncSession, lease: BaseLease) -> None:
    """Has every commit of ``session`` raise ``LeaseLost`` instead, once the lease is lost.

    What the session has changed is sent to the database first, and the lease checked then: nothing
    comes between but the commit itself. So is each ``begin_nested`` block.

    It holds as long as the session does, also when the lease has been released: a session that is
    used again for other work is made anew for it. What commits without a session, a ``Connection``
    say, calls ``lease.check()`` before.
    """

    def check(session: Session) -> None:
        session.flush()
        lease.check()

    target: Any = getattr(session, "sync_session", session)
    event.listen(target, "before_commit", check)

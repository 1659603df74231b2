"""A router for a project with a replica."""

from __future__ import annotations

from typing import Any

REPLICA = f"{__name__}.Replica"


class Replica:
    """Sends reads to another database than writes."""

    def db_for_read(self, model: Any, **hints: Any) -> str:
        return "other"

    def db_for_write(self, model: Any, **hints: Any) -> str:
        return "default"

    def allow_relation(self, *_rows: Any, **_hints: Any) -> bool:
        return True

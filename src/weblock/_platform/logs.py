"""The logger, which harms nobody."""

from __future__ import annotations

import logging
from typing import Any


class _Harmless(logging.LoggerAdapter[logging.Logger]):
    """A logger whose handlers may fail: a lease does not depend on what somebody does with its news."""

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        if not self.isEnabledFor(level):
            return
        try:
            self.logger.log(level, msg, *args, stacklevel=2, **kwargs)
        except Exception:  # noqa: BLE001, S110 - there is nobody left to tell
            pass


logger = _Harmless(logging.getLogger("weblock"), {})
"""Logs as ``logging.getLogger("weblock")`` does, and never raises because a handler did."""

"""A check for django-health-check 4, which ``HealthCheckView.as_view(checks=[...])`` takes by its path."""

from __future__ import annotations

import dataclasses

from health_check.base import HealthCheck
from health_check.exceptions import ServiceUnavailable, ServiceWarning

from ...errors import EngineRecovering, EngineUnavailable
from .settings import async_locks


@dataclasses.dataclass
class Engine(HealthCheck):
    """Asks the engine of an alias of ``WEBLOCK`` for an answer.

    An engine that recovers, and grants nothing for a while, is a warning.
    """

    alias: str = "default"

    async def run(self) -> None:
        """Raise ``ServiceUnavailable`` with the reason if the engine does not answer."""
        try:
            await async_locks[self.alias].ping()
        except EngineRecovering as error:
            raise ServiceWarning(str(error)) from error
        except EngineUnavailable as error:
            raise ServiceUnavailable(str(error)) from error

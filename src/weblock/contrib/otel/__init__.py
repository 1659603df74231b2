"""OpenTelemetry: metrics and traces of what happens to locks.

``instrument()`` observes all locks of the process, ``instrument(locks)`` those of one ``Locks``, and
``observer()`` may stand in ``observers=[...]``. ``opentelemetry-instrument`` does it by itself.
"""

from ..._requirements import require

require("weblock.contrib.otel", "otel")

from .recording import WeblockInstrumentor, instrument, observer, traced  # noqa: E402 - only what fits

__all__ = ["WeblockInstrumentor", "instrument", "observer", "traced"]

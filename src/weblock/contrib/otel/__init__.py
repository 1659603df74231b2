"""OpenTelemetry: metrics and traces of what happens to locks.

``instrument()`` observes all locks of the process, ``instrument(locks)`` those of one ``Locks``, and
``observer()`` may stand in ``observers=[...]``. ``opentelemetry-instrument`` does it by itself.
"""

from ..._requirements import require

require("weblock.contrib.otel", "otel")

from .instrumenting import WeblockInstrumentor, instrument, observer  # noqa: E402 - only what fits
from .traces import traced  # noqa: E402

__all__ = ["WeblockInstrumentor", "instrument", "observer", "traced"]
